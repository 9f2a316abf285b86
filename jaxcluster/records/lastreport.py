"""What went wrong on a cluster, cell by cell, for whoever asks later.

A report keeps what a notebook has shown, and the last launches, in the cluster's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field

from jaxcluster import wire
from jaxcluster.errors import CellFailed, Divergence, RankDied, RankHung
from jaxcluster.model.outputs import ANSI, CellRecord
from jaxcluster.records.runtimefolder import runtime_root
from jaxcluster.supervision import folders
from jaxcluster.wire.ops.agreement import AgreedLaunch, Looked

FOLDER = "reports"  # a folder, which new ranks on the same name leave as it is
FILE = "reports.jsonl"
MOST = 8  # that are kept
LOCK_S = 1.0  # that another process's addition is waited for


@dataclass(frozen=True)
class LastReport:
    """How a cell went wrong on some of its ranks, or on all of them together."""

    at_ns: int  # by ``time.time_ns``
    cell: int  # its number in its notebook
    source: str
    kind: str  # the error's class
    message: str
    hint: str = ""
    culprits: list[int] = field(default_factory=list)  # the ranks that differed, failed or died
    launches: list[AgreedLaunch] = field(default_factory=list)  # the last ones of the ranks
    now: float = 0.0  # the referee's time
    lines: list[int] = field(default_factory=list)  # at which these ranks raised an error
    cell_id: str = ""  # Jupyter's, where there is one

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
    looked = looked or Looked(0.0)
    return LastReport(
        now_ns,
        record.execution_count,
        record.source,
        error.ename if isinstance(error, CellFailed) else type(error).__name__,
        ANSI.sub("", error.message),
        ANSI.sub("", error.hint),
        culprits,
        [*looked.agreed],
        looked.now,
        sorted({e.lineno for rank, e in record.errors.items() if rank in culprits and e.lineno}),
        record.cell_id,
    )


class Reports:
    """Those of the cluster of this name: the last ones, of any notebook."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: list[LastReport] = []

    def add(self, report: LastReport) -> None:
        """Keep it, also for other processes. Never raises: a cell is not to fail by it."""
        self._own = [*self._own, report][-MOST:]
        with contextlib.suppress(OSError, ValueError):
            folder = runtime_root() / self._name / FOLDER
            folder.mkdir(0o700, exist_ok=True)
            held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                folders.lock(held, LOCK_S)  # another notebook may add one, too
                draft = folder / f"part-{os.getpid()}"
                draft.write_bytes(b"".join(wire.encode_body(one) + b"\n" for one in self.all()))
                draft.replace(folder / FILE)
            finally:
                os.close(held)

    @property
    def last_own(self) -> LastReport | None:
        """The last one of this process's cells."""
        return self._own[-1] if self._own else None

    def all(self) -> list[LastReport]:
        """The last ones that are known, oldest first."""
        found = {one.at_ns: one for one in self._own}
        with contextlib.suppress(OSError):
            path = runtime_root() / self._name / FOLDER / FILE
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError, RecursionError):
                    one = wire.parse(LastReport, json.loads(line))
                    found[one.at_ns] = one
        return [found[at_ns] for at_ns in sorted(found)][-MOST:]

    def find(self, cell: int | None = None) -> LastReport | None:
        """The last one, or the last of the cell with this number; None where there is none."""
        return next((one for one in reversed(self.all()) if cell in (None, one.cell)), None)
