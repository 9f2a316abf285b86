"""What went wrong on a cluster, cell by cell, for whoever asks later.

The notebook whose cell it was has shown it. The report keeps it, with what the ranks had launched,
which new processes know nothing of. It lies in the cluster's folder, also for those who were not
there, as an assistant in an editor, and ends with the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxcluster import wire
from jaxcluster.errors import CellFailed, Divergence, RankDied, RankHung
from jaxcluster.model.outputs import ANSI, CellRecord
from jaxcluster.records.runtimefolder import inside
from jaxcluster.wire.ops.agreement import AgreedLaunch, Looked

FOLDER = "reports"  # a folder, which new ranks on the same name leave as it is
MOST = 8  # that are kept
DRAFT_NS = 60 * 10**9  # a draft that is older is of a process that was killed


@dataclass(frozen=True)
class LastReport:
    """How a cell went wrong on some of its ranks, or on all of them together.

    Attributes:
      at_ns: when, by ``time.time_ns``.
      cell: the cell's number in its notebook.
      kind: the error's class.
      cell_id: Jupyter's, where there is one.
      message, hint: what was said, and what was done about it.
      culprits: the ranks that differed, failed or died.
      launches: the last ones that the ranks had agreed on, and the referee's time.
      lines: of the cell, at which these ranks raised an error.
    """

    at_ns: int
    cell: int
    source: str
    kind: str
    message: str
    hint: str = ""
    culprits: list[int] = field(default_factory=list)
    launches: list[AgreedLaunch] = field(default_factory=list)
    now: float = 0.0
    lines: list[int] = field(default_factory=list)
    cell_id: str = ""

    @property
    def told(self) -> list[str]:
        """What the cell has shown of it, line by line."""
        begin = f"{self.kind} in " if self.kind == Divergence.__name__ else ""
        return [*f"{begin}{self.message or self.kind}".splitlines(), *self.hint.splitlines()]


def made_of(
    record: CellRecord, error: object, now_ns: int, looked: Looked | None = None
) -> LastReport | None:
    """The report of a cell's end; None of one that says all itself: the same error on all ranks.

    Args:
      error: what waiting for the cell raises.
      looked: what the referee knew then.
    """
    if not isinstance(error, CellFailed | Divergence | RankDied | RankHung):
        return None
    culprits = list(error.ranks)
    is_plain = isinstance(error, CellFailed) and error.ename != "TimeoutError"
    if is_plain and set(culprits) == set(record.ranks):
        return None
    launches: Sequence[AgreedLaunch] = looked.agreed if looked is not None else ()
    return LastReport(
        now_ns,
        record.execution_count,
        record.source,
        error.ename if isinstance(error, CellFailed) else type(error).__name__,
        ANSI.sub("", error.message),
        ANSI.sub("", error.hint),
        culprits,
        [*launches],
        looked.now if looked is not None else 0.0,
        sorted({e.lineno for rank, e in record.errors.items() if rank in culprits and e.lineno}),
        record.cell_id,
    )


class Reports:
    """Those of one cluster: the last ones, of any notebook.

    Args:
      name: the cluster's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: list[LastReport] = []

    def add(self, report: LastReport) -> None:
        """Keep it, also for other processes. Never raises: a cell is not to fail by it."""
        self._own = [*self._own, report][-MOST:]
        with contextlib.suppress(OSError, ValueError):
            folder = inside() / self._name / FOLDER
            with contextlib.suppress(FileExistsError):
                folder.mkdir(0o700)
            draft = folder / f"{report.at_ns}.{os.getpid()}"
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(wire.encode_body(report))
            draft.replace(folder / f"{report.at_ns}.json")
            for old in [*self._files()[:-MOST], *_left(folder, report.at_ns)]:
                old.unlink(missing_ok=True)

    @property
    def last_own(self) -> LastReport | None:
        """The last one of this process's cells."""
        return self._own[-1] if self._own else None

    def all(self) -> list[LastReport]:
        """All that are known, oldest first."""
        found = {one.at_ns: one for one in self._own}
        for file in self._files():
            with contextlib.suppress(OSError, ValueError, RecursionError):
                one = wire.parse(LastReport, json.loads(file.read_bytes()))
                found[one.at_ns] = one
        return [found[at_ns] for at_ns in sorted(found)]

    def find(self, cell: int | None = None) -> LastReport | None:
        """The last one, or the last of the cell with this number; None where there is none."""
        return next((one for one in reversed(self.all()) if cell in (None, one.cell)), None)

    def _files(self) -> list[Path]:
        """Oldest first."""
        with contextlib.suppress(OSError):
            found = (inside() / self._name / FOLDER).iterdir()
            whole = [file for file in found if re.fullmatch(r"\d+\.json", file.name)]
            return sorted(whole, key=lambda file: int(file.stem))
        return []


def _left(folder: Path, now_ns: int) -> list[Path]:
    """Drafts that nobody goes on writing."""
    drafts = (found for found in folder.iterdir() if re.fullmatch(r"\d+\.\d+", found.name))
    return [draft for draft in drafts if int(draft.stem) < now_ns - DRAFT_NS]
