"""What went wrong on a cluster, cell by cell, for whoever asks later.

A report keeps what a notebook has shown, and the last launches, in the cluster's folder.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from jaxcluster import wire
from jaxcluster.errors import CellFailed, Divergence, JaxClusterError, RankDied, RankHung
from jaxcluster.model.outputs import ANSI, CellRecord
from jaxcluster.records.runtimefolder import runtime_root
from jaxcluster.wire.ops.agreement import AgreedLaunch, Looked

FOLDER = "reports"  # a folder, which new ranks on the same name leave as it is
ENDING = ".json"
MOST = 8  # that are kept


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
    """Those of the cluster of this name: the last ones, of any notebook.

    Attributes:
      last_own: the last one of this process's cells.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.last_own: LastReport | None = None

    def add(self, report: LastReport) -> None:
        """Keep it, also for other processes. Never raises: a cell is not to fail by it."""
        self.last_own = report
        with contextlib.suppress(OSError, ValueError, JaxClusterError):
            folder = runtime_root() / self._name / FOLDER
            folder.mkdir(0o700, exist_ok=True)
            draft = folder / f"{report.at_ns}.part"
            draft.write_bytes(wire.encode_body(report))
            draft.rename(draft.with_suffix(ENDING))
            for _, old in self._files()[:-MOST]:
                old.unlink(missing_ok=True)

    def _files(self) -> list[tuple[int, Path]]:
        """(when, file) of each, oldest first."""
        found = (runtime_root() / self._name / FOLDER).glob(f"*{ENDING}")
        return sorted((int(path.stem), path) for path in found if path.stem.isdecimal())

    def all(self) -> list[LastReport]:
        """The last ones, oldest first; also where the folder is gone, or took none."""
        found = {own.at_ns: own} if (own := self.last_own) is not None else {}
        for at_ns, path in self._files()[-MOST:]:
            with contextlib.suppress(OSError, ValueError, RecursionError):
                found[at_ns] = wire.parse(LastReport, json.loads(path.read_bytes()))
        return [found[at_ns] for at_ns in sorted(found)]

    def find(self, cell: int | None = None) -> LastReport | None:
        """The last one, or the last of the cell with this number; None where there is none."""
        return next((one for one in reversed(self.all()) if cell in (None, one.cell)), None)
