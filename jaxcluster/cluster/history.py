"""Cells that anybody has sent to a cluster: read from what its ranks have written, and followed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from jaxcluster import wire
from jaxcluster.cluster.world import World
from jaxcluster.errors import UsageError
from jaxcluster.host.ringfile import Part
from jaxcluster.model import history as model
from jaxcluster.model.history import Cells, History, PastCell
from jaxcluster.model.outputs import CellRecord

LOOK_S = 0.1  # between two looks whether there is more

Listener = Callable[[CellRecord, wire.RankOutput | wire.CellReply], None]


class Reader:
    """Reads what the ranks have written of their cells; each time on from where it was."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._cells = Cells()
        self._at = dict.fromkeys(range(world.num_processes), 0)

    def look(self) -> History:
        """All cells that the ranks have kept, as they are now."""
        for rank, part in _read(self.world, "cells", self._at):
            self._cells.add(rank, part.data)
        return self._cells.history(list(self.world.dead))


def find(world: World, number: int | None = None) -> PastCell:
    """See ``Cluster.outputs``."""
    found = Reader(world).look()
    if not found.cells:
        raise UsageError("No cell has run on this cluster yet.", "%%spmd runs one.")
    if number is None:
        return found.cells[-1]
    for one in reversed(found.cells):
        if one.number == number:
            return one
    first, last = found.cells[0].number, found.cells[-1].number
    raise UsageError(
        f"There is no cell {number} in the history of this cluster: it has {first} to {last}.",
        "%jaxcluster outputs --history lists them.",
    )


class Following:
    """A cell, read from its beginning, and on as long as it runs.

    Args:
      ranks: whose output is read; all that were to run the cell by default.
      on_output: told what comes, as for a cell of one's own.

    Attributes:
      cell: as it was at the last look.
      record: what has come so far.
    """

    def __init__(
        self,
        world: World,
        cell: PastCell,
        ranks: Sequence[int] | None = None,
        on_output: Listener = lambda record, what: None,
    ) -> None:
        self.cell = cell
        self._world, self._reader = world, Reader(world)
        chosen = [r for r in cell.ranks if ranks is None or r in ranks]
        self.record = CellRecord(
            cell.seq, cell.cell, cell.source, chosen, seconds=cell.seconds, sent_ns=cell.sent_ns
        )
        self._at: dict[int, int] = {}
        self._on_output = on_output

    def look(self) -> None:
        """Read what has come since the last look."""
        if self.cell.state == model.RUNNING:
            # First: output from before the end that is seen here is read below.
            now = self._reader.look().cells
            self.cell = next((one for one in now if one.sent_ns == self.cell.sent_ns), self.cell)
        for rank in self.record.ranks:
            if rank in self.cell.runs:
                self._at.setdefault(rank, self.cell.runs[rank].start)
        for rank, part in _read(self._world, "output", self._at, self._has_more):
            self._take(rank, part.start, bytes(part.data))
        for rank in self._at:
            if self.record.records[rank].reply is None:
                model.mark_dead(self.record.records[rank], self.cell)
                self.record.seconds = self.cell.seconds
                if (reply := model.reply_of(rank, self.cell)) is not None:
                    self.record.add_reply(reply)
                    self._on_output(self.record, reply)

    def _has_more(self, rank: int) -> bool:
        end = self.cell.runs[rank].end
        return end is None or self._at[rank] < end

    def _take(self, rank: int, start: int, data: bytes) -> None:
        """Lines of a rank's output, which begin at ``start``."""
        run, seq = self.cell.runs[rank], self.cell.seq
        gone = min(start, run.end or start) - self._at[rank]
        kept = data if run.end is None else data[: max(0, run.end - start)]
        lost = [model.not_kept(rank, seq, gone)] if gone > 0 else []
        for output in [*lost, *model.outputs_of(rank, seq, kept)]:
            self.record.add_output(output)
            self._on_output(self.record, output)

    def follow(self, check: Callable[[], object]) -> None:
        """Read on until it has ended on all its ranks.

        Args:
          check: called at each look; may raise to end this.
        """
        while self.cell.state == model.RUNNING:
            check()
            began = time.monotonic()
            self.look()
            time.sleep(max(LOOK_S, 5 * (time.monotonic() - began)))  # of many ranks not at once


def _read(
    world: World, log: str, at: dict[int, int], has_more: Callable[[int], bool] = lambda rank: True
) -> Iterator[tuple[int, Part]]:
    """What ranks have written from the positions ``at`` on, which move with it."""
    wanted = [rank for rank in at if has_more(rank)]
    while wanted:
        found = world.processes.read_history(log, {rank: at[rank] for rank in wanted})
        wanted = []
        for rank, part in found.items():
            yield rank, part
            has_moved, at[rank] = at[rank] < part.end, part.end
            if has_moved and part.end < part.size and has_more(rank):
                wanted.append(rank)


def record_of(world: World, cell: PastCell, ranks: Sequence[int] | None = None) -> CellRecord:
    """The output of ranks in a cell so far."""
    following = Following(world, cell, ranks)
    following.look()
    return following.record
