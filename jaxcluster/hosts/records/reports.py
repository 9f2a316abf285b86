"""Reports of cells that failed on a cluster, for later questions.

A report has what a notebook has shown, and the last launches. The cluster's folder keeps it.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jaxcluster import wire
from jaxcluster.agreement.messages import Looked, Place
from jaxcluster.errors import CellFailed, Divergence, JaxClusterError, RankDied, RankHung
from jaxcluster.hosts.records.runtimefolder import runtime_root
from jaxcluster.model.outputs import ANSI, CellRecord
from jaxcluster.text import format_table

FOLDER = "reports"  # a folder, which new ranks on the same name leave as it is
ENDING = ".json"
MOST = 8  # reports that are kept

# The kind of failure; "dead": processes ended.
ReportKind = Literal["diverged", "failed", "hung", "dead"]

KINDS: dict[type[JaxClusterError], ReportKind] = {
    Divergence: "diverged",
    CellFailed: "failed",
    RankHung: "hung",
    RankDied: "dead",
}


@dataclass(frozen=True)
class Report:
    """How a cell went wrong, or which ranks died."""

    kind: ReportKind
    cluster: str
    cell_id: str  # the Jupyter cell's
    cell: int  # its number; 0 if none ran
    at: int  # when, in milliseconds since 1970
    title: str  # what happened, in a line
    lines: list[str]  # more of it, and what was done about it
    culprits: list[int]  # the ranks that differed, failed or died
    open: bool = False  # whether ranks are dead, and it is the user's to restart
    source: str = ""  # the cell's
    marked: list[int] = field(default_factory=list)  # its lines at which ranks raised an error
    launches: str = ""  # the last that all of their ranks agreed on; "" if none is known


def made_of(
    record: CellRecord, error: object, cluster: str, at: int, looked: Looked | None = None
) -> Report | None:
    """The report of a cell's end; None of one that says all itself: the same error on all ranks.

    Args:
      error: what waiting for the cell raises.
      at: when, in milliseconds since 1970.
      looked: what the referee knew then.
    """
    if not isinstance(error, CellFailed | Divergence | RankDied | RankHung):
        return None
    culprits = list(error.ranks)
    is_plain = isinstance(error, CellFailed) and error.ename != "TimeoutError"
    if is_plain and set(culprits) == set(record.ranks):
        return None
    begin = "Divergence in " if isinstance(error, Divergence) else ""
    told = ANSI.sub("", f"{begin}{error.message or type(error).__name__}\n{error.hint}")
    title, *lines = told.strip().splitlines()
    return Report(
        KINDS[type(error)],
        cluster,
        record.cell_id,
        record.execution_count,
        at,
        title,
        lines,
        culprits,
        source=record.source,
        marked=sorted({e.lineno for r, e in record.errors.items() if r in culprits and e.lineno}),
        launches=_launches(looked) if looked is not None and looked.agreed else "",
    )


def _launches(looked: Looked) -> str:
    """The last launches that ranks have agreed on, oldest first."""
    rows = [("program", "at", "before the report", "came last")]
    for one in looked.agreed:
        late = f", by {1000 * one.late_s:.1f} ms" if one.late_s else ""
        ago = f"{looked.now - one.at:.3f} s"
        rows.append((one.name, _at(one.place), ago, f"rank {one.last}{late}"))
    return "\n".join(format_table(rows))


def _at(place: Place) -> str:
    """``cell [3] line 2``."""
    parts = [f"cell [{place.cell}]"] if place.cell else []
    parts += [f"line {place.line}"] if place.line else []
    return " ".join(parts) or place.within


class Reports:
    """Those of the cluster of this name: the last ones, of any notebook.

    Attributes:
      last_own: the last one of this process's cells.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.last_own: Report | None = None

    def add(self, report: Report) -> None:
        """Keep it, also for other processes. Never raises: a cell is not to fail by it."""
        self.last_own = report
        with contextlib.suppress(OSError, ValueError, JaxClusterError):
            folder = runtime_root() / self._name / FOLDER
            folder.mkdir(0o700, exist_ok=True)
            draft = folder / f"{time.time_ns()}.part"
            draft.write_bytes(wire.encode_body(report))
            draft.rename(draft.with_suffix(ENDING))
            for old in self._files()[:-MOST]:
                old.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """Oldest first."""
        return sorted((runtime_root() / self._name / FOLDER).glob(f"*{ENDING}"))

    def all(self) -> list[Report]:
        """The last ones, oldest first; also where the folder is gone, or took none."""
        found = [self.last_own] if self.last_own is not None else []
        for path in self._files()[-MOST:]:
            with contextlib.suppress(OSError, ValueError, RecursionError):
                found.append(wire.parse(Report, json.loads(path.read_bytes())))
        return sorted(found, key=lambda one: one.at)

    def find(self, cell: int | None = None) -> Report | None:
        """The last one, or the last of the cell with this number; None where there is none."""
        return next((one for one in reversed(self.all()) if cell in (None, one.cell)), None)
