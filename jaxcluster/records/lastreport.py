"""What last went wrong on a cluster, kept in its folder for those who were not there.

The notebook whose cell it was has shown it. Who connects later, as an assistant in an editor does,
finds it here, with the ranks' stacks and launches of that moment. It outlasts a restart of the
ranks, and ends with the cluster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxcluster import wire
from jaxcluster.errors import Divergence, RankDied, RankHung
from jaxcluster.records.runtimefolder import inside

FILE = "last-report.json"
LAUNCHES = 20  # of each rank


@dataclass(frozen=True)
class LastReport:
    """A divergence, a hang or a death, as its cell has told it.

    Attributes:
      at_ns: when, by ``time.time_ns``.
      cell: the cell's number in its notebook.
      kind: the error's class.
      message, hint: what was said, and what was done about it.
      reports: what each rank said when it was found; empty where none was asked.
    """

    at_ns: int
    cell: int
    source: str
    kind: str
    message: str
    hint: str
    reports: list[wire.RankReport] = field(default_factory=list)


def keep(
    name: str, cell: int, source: str, error: object, reports: Mapping[int, wire.RankReport]
) -> None:
    """Keep what a cell has ended with, if it is of this kind. Never raises: it is no cell's duty.

    Args:
      name: the cluster's.
    """
    if not isinstance(error, Divergence | RankDied | RankHung):
        return
    short = [dataclasses.replace(r, launches=r.launches[-LAUNCHES:]) for r in reports.values()]
    kind = type(error).__name__
    found = LastReport(time.time_ns(), cell, source, kind, error.message, error.hint, short)
    with contextlib.suppress(OSError, ValueError):
        folder = inside() / name
        draft = folder / f"{FILE}.{os.getpid()}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(wire.encode_body(found))
        draft.replace(folder / FILE)


def read(name: str) -> LastReport | None:
    """The last one of a cluster whose folder is on this machine."""
    try:
        body = json.loads((inside() / name / FILE).read_bytes())
        return wire.parse_strictly(LastReport, body)
    except (OSError, ValueError, RecursionError):
        return None
