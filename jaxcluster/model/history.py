"""The cells that a cluster has run, whoever has sent them, from what its ranks have written.

Each rank has two logs of JSON lines (``rank.history``): its cells, and their output. Pure:
their lines go in, cells and outputs come out. A line that makes no sense is passed over.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxcluster import wire
from jaxcluster.model.outputs import RankRecord

RUNNING = "running"
DIED = "died"  # the rank's process ended in the middle of it
UNKNOWN = "unknown"  # its end could not be kept
# Of several ranks' the first counts.
STATES = (RUNNING, DIED, "error", "refused", "interrupted", "skipped", UNKNOWN, "ok")


@dataclass
class Run:
    """A cell on one of its ranks.

    ``start`` and ``end`` are positions in the rank's output; ``end`` is None while there may come
    more. ``status`` is ``running``, ``died``, or as a ``CellReply`` has it.
    """

    start: int
    end: int | None = None
    status: str = RUNNING
    seconds: float = 0.0
    error: wire.ErrorInfo | None = None


@dataclass
class PastCell:
    """A cell, as far as its ranks have written of it.

    Attributes:
      seq: tells it from others; later cells have larger ones.
      sent_ns: when it was sent, by its notebook's clock.
      cell: its number in its notebook, as in ``[7]``.
      who: the notebook or process that has sent it.
      ranks: those that were to run it.
      shown: those whose output its notebook has shown.
      runs: by rank.
      awaited: ranks that have not begun it, and may yet.
      number: in the cluster, counted over all notebooks, and over restarts.
    """

    seq: int
    sent_ns: int
    cell: int
    who: str
    source: str
    ranks: list[int]
    shown: list[int]
    runs: dict[int, Run] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)
    number: int = 0

    @property
    def state(self) -> str:
        """How it is, or has ended, on all its ranks."""
        if self.awaited:
            return RUNNING
        found = {run.status for run in self.runs.values()}
        return next((state for state in STATES if state in found), RUNNING)

    @property
    def seconds(self) -> float:
        """How long it took on its slowest rank; 0 while it runs."""
        return max((run.seconds for run in self.runs.values()), default=0.0)

    @property
    def first_line(self) -> str:
        """Of its source, the first line that does something."""
        lines = [line.strip() for line in self.source.splitlines()]
        return next((line for line in lines if line and line[0] not in "#%"), "") or (
            next(filter(None, lines), "")
        )


@dataclass(frozen=True)
class History:
    """All cells, oldest first. Before them there were ``dropped`` more, which are not kept.

    Attributes:
      cells: those that are kept.
      dropped: how many are not.
    """

    cells: Sequence[PastCell]
    dropped: int = 0

    @property
    def running(self) -> PastCell | None:
        """The cell that runs now."""
        return next((one for one in self.cells if one.state == RUNNING), None)


class Cells:
    """Takes in what ranks write of their cells, as it comes."""

    def __init__(self) -> None:
        self._found: dict[int, PastCell] = {}
        self._last: dict[int, Run] = {}
        self._counts: dict[int, int] = {}  # by seq, how many cells its ranks had begun
        self._seqs: dict[int, int] = {}  # of each rank's last cell

    def add(self, rank: int, log: bytes | memoryview) -> None:
        """More lines of a rank."""
        for line in lines_of(log):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                if "source" in line:
                    self._begin(rank, line)
                elif "process" in line:
                    _close(self._last.get(rank), None)
                elif "ended" in line:
                    self._end(rank, line)

    def _begin(self, rank: int, line: Mapping[str, Any]) -> None:
        cell = PastCell(
            int(line["seq"]),
            int(line["sent"]),
            int(line["cell"]),
            str(line["who"]),
            str(line["source"]),
            [int(rank) for rank in line["ranks"]],
            [int(rank) for rank in line["shown"]],
        )
        run, count = Run(int(line["at"])), int(line["count"])
        self._counts[cell.seq] = max(count, self._counts.get(cell.seq, 1))
        _close(self._last.get(rank), run.start, UNKNOWN)
        self._seqs[rank] = cell.seq
        known = self._found.setdefault(cell.sent_ns, cell)
        self._last[rank] = known.runs[rank] = run

    def _end(self, rank: int, line: Mapping[str, Any]) -> None:
        ended = self._found.get(line["ended"])
        if ended is not None and rank in ended.runs:
            run, error = ended.runs[rank], line.get("error")
            run.error = wire.parse(wire.ErrorInfo, error) if error else None
            run.seconds, run.status = float(line["seconds"]), str(line["status"])
        # It may not have begun it.
        self._seqs[rank] = max(int(line["seq"]), self._seqs.get(rank, 0))

    def history(self, dead: Iterable[int] = ()) -> History:
        """All cells so far.

        Args:
          dead: the ranks whose processes have ended: what they had not ended, they will not.
        """
        gone = set(dead)
        for rank in gone:
            _close(self._last.get(rank), None)
        for cell in self._found.values():
            late = {r for r in cell.ranks if self._seqs.get(r, 0) < cell.seq} - cell.runs.keys()
            cell.awaited = late - gone
            cell.runs |= {rank: Run(0, 0, DIED) for rank in late & gone}
        cells = sorted(self._found.values(), key=lambda one: (one.seq, one.sent_ns))
        dropped = self._counts.get(cells[0].seq, 1) - 1 if cells else 0
        for number, cell in enumerate(cells, dropped + 1):
            cell.number = number
        return History(cells, dropped)


def _close(run: Run | None, end: int | None, status: str = DIED) -> None:
    """Nothing more comes of it."""
    if run is None:
        return
    run.end = end if run.end is None else run.end
    if run.status == RUNNING:
        run.status = status


def lines_of(log: bytes | memoryview) -> Iterator[dict[str, Any]]:
    """Its JSON objects."""
    for line in bytes(log).splitlines():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def outputs_of(rank: int, seq: int, log: bytes | memoryview) -> Iterator[wire.RankOutput]:
    """A rank's output, from a part of its log."""
    for line in lines_of(log):
        if isinstance(line.get("text"), str):
            content = {"name": str(line.get("stream", "stdout")), "text": line["text"]}
            yield wire.RankOutput(rank, seq, "stream", content)
        elif isinstance(line.get("content"), dict):
            kind, content = str(line.get("kind")), line["content"]
            made = {"transient": {}, "metadata": {}, **content} if "data" in content else content
            yield wire.RankOutput(rank, seq, kind, made)


def not_kept(rank: int, seq: int, nbytes: int) -> wire.RankOutput:
    """What is shown in the place of output that is gone."""
    told = {"name": "stderr", "text": f"[{nbytes:,} bytes of output before this are not kept]\n"}
    return wire.RankOutput(rank, seq, "stream", told)


def reply_of(rank: int, cell: PastCell) -> wire.CellReply | None:
    """How a cell has ended on a rank; None where it has not, or its rank died."""
    run = cell.runs.get(rank)
    if run is None or run.status in (RUNNING, DIED, UNKNOWN):
        return None
    return wire.CellReply(rank, cell.seq, run.status, run.seconds, run.error)


def mark_dead(record: RankRecord, cell: PastCell) -> None:
    """Say so in the record of a rank that died in the cell."""
    run = cell.runs.get(record.rank)
    if run is not None and run.status == DIED:
        record.died = "its process ended in this cell"
