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
AT_ONCE = 8  # ranks whose logs are read at once, ``ringfile.CHUNK`` bytes of each

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
      rest_s: until it may be looked at again: where many ranks are read, not at once.
    """

    def __init__(
        self,
        world: World,
        cell: PastCell,
        ranks: Sequence[int] | None = None,
        on_output: Listener | None = None,
    ) -> None:
        self.cell = cell
        self._world = world
        self._reader = Reader(world)
        chosen = [r for r in cell.ranks if ranks is None or r in ranks]
        self.record = CellRecord(
            cell.seq, cell.cell, cell.source, chosen, seconds=cell.seconds, sent_ns=cell.sent_ns
        )
        self._at: dict[int, int] = {}
        self._on_output = on_output
        self.rest_s = LOOK_S

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self.cell.state != model.RUNNING

    def look(self) -> bool:
        """Read what has come since the last look; returns whether there was anything."""
        began = time.monotonic()
        if not self.is_over:
            # First: output from before the end that is seen here is read below.
            now = self._reader.look().cells
            self.cell = next((one for one in now if one.sent_ns == self.cell.sent_ns), self.cell)
        for rank in self.record.ranks:
            if rank in self.cell.runs:
                self._at.setdefault(rank, self.cell.runs[rank].start)
        has_new = False
        for rank, part in _read(self._world, "output", self._at, self._has_more):
            has_new |= self._take(rank, part.start, bytes(part.data))
        for rank in self._at:
            if self.record.records[rank].reply is None:
                reply = model.reply_of(rank, self.cell)
                model.mark_dead(self.record.records[rank], self.cell)
                self.record.seconds = self.cell.seconds
                if reply is not None:
                    self.record.add_reply(reply)
                    self._tell(reply)
        self.rest_s = max(LOOK_S, 5 * (time.monotonic() - began))
        return has_new

    def _has_more(self, rank: int) -> bool:
        run = self.cell.runs.get(rank)
        return run is not None and (run.end is None or self._at[rank] < run.end)

    def _take(self, rank: int, start: int, data: bytes) -> bool:
        """Lines of a rank's output, which begin at ``start``."""
        run = self.cell.runs[rank]
        if (gone := min(start, run.end or start) - self._at[rank]) > 0:
            self._add(model.not_kept(rank, self.cell.seq, gone))
        if run.end is not None:
            data = data[: max(0, run.end - start)]
        for output in model.outputs_of(rank, self.cell.seq, data):
            self._add(output)
        return bool(data)

    def _add(self, output: wire.RankOutput) -> None:
        self.record.add_output(output)
        self._tell(output)

    def _tell(self, what: wire.RankOutput | wire.CellReply) -> None:
        if self._on_output is not None:
            self._on_output(self.record, what)

    def follow(self, check: Callable[[], object] = lambda: None) -> CellRecord:
        """Read on until it has ended on all its ranks; returns all that came.

        Args:
          check: called at each look; may raise to end this.
        """
        while True:
            self.look()
            if self.is_over:
                return self.record
            check()
            time.sleep(self.rest_s)


def _read(
    world: World, log: str, at: dict[int, int], has_more: Callable[[int], bool] = lambda rank: True
) -> Iterator[tuple[int, Part]]:
    """What ranks have written from the positions ``at`` on, which move with it."""
    wanted = [rank for rank in at if has_more(rank)]
    while wanted:
        some = {rank: at[rank] for rank in wanted[:AT_ONCE]}
        del wanted[:AT_ONCE]
        for rank, part in world.processes.read_history(log, some).items():
            yield rank, part
            at[rank] = part.end
            if some[rank] < part.end < part.size and has_more(rank):
                wanted.append(rank)


def record_of(world: World, cell: PastCell, ranks: Sequence[int] | None = None) -> CellRecord:
    """The output of ranks in a cell so far."""
    following = Following(world, cell, ranks)
    following.look()
    return following.record
