"""Cells that anybody has sent to a cluster: read from what its ranks have written, and followed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster.world import World
from jaxcluster.errors import UsageError
from jaxcluster.host.ringfile import Part
from jaxcluster.model.outputs import RUNNING, UNKNOWN, CellRecord, PastCell

LOOK_S = 0.1  # between two looks whether there is more

Listener = Callable[[CellRecord, wire.RankOutput], None]


class History:
    """All cells that the ranks of a world have kept, from all notebooks.

    Attributes:
      cells: oldest first, as they were at the last look.
      dropped: how many older cells are no longer kept.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.cells: list[PastCell] = []
        self.dropped = 0
        self._found: dict[int, PastCell] = {}  # by seq
        self._replies: dict[tuple[int, int], wire.CellReply] = {}  # by seq and rank
        self._last: dict[int, PastCell] = {}  # that each rank has begun
        self._at = dict.fromkeys(range(world.num_processes), 0)
        self.look()

    @property
    def running(self) -> PastCell | None:
        """The cell that runs now."""
        return next((one for one in self.cells if one.state == RUNNING), None)

    def find(self, number: int | None = None) -> PastCell:
        """The cell with this number; without a number, the last cell.

        Raises:
          UsageError: no cell has run, or none has this number.
        """
        if not self.cells:
            raise UsageError("No cell has run on this cluster yet.", "%%spmd runs one.")
        for one in reversed(self.cells):
            if number in (None, one.number):
                return one
        first, last = self.cells[0].number, self.cells[-1].number
        raise UsageError(
            f"There is no cell {number} in the history of this cluster: it has {first} to {last}.",
            "%jaxcluster outputs --history lists them.",
        )

    def look(self) -> None:
        """Read what the ranks have written since the last look."""
        dead = set(self.world.dead)  # by now: the last that they have written is read below
        for rank, part in _read(self.world, "cells", self._at):
            for line in bytes(part.data).splitlines():
                with contextlib.suppress(ValueError):  # half a line
                    self._add(rank, wire.parse(wire.Noted, json.loads(line)))
        self.cells = sorted(self._found.values(), key=lambda one: one.seq)
        self.dropped = self.cells[0].count - 1 if self.cells else 0
        for number, cell in enumerate(self.cells, self.dropped + 1):
            cell.number = number
            for rank, record in cell.records.items():
                if record.reply is None and not record.died:
                    last = self._last.get(rank, cell)
                    record.reply = self._replies.get((cell.seq, rank))
                    is_past = last.seq > cell.seq or rank >= self.world.num_processes
                    if record.reply is None and is_past:
                        record.reply = wire.CellReply(rank, cell.seq, UNKNOWN, 0.0)
                    elif record.reply is None and rank in dead:
                        _die(cell, rank)
            cell.seconds = max((reply.seconds for reply in cell.replies.values()), default=0.0)

    def _add(self, rank: int, noted: wire.Noted) -> None:
        """A line of a rank."""
        before = self._last.get(rank)
        if (request := noted.cell) is not None:
            if (cell := self._found.get(request.seq)) is None:
                cell = PastCell.of(request, shown=request.shown_ranks, who=request.who)
                self._found[request.seq] = cell
            self._last[rank] = cell
            cell.count, cell.starts[rank] = max(cell.count, noted.count), noted.at
            if before is not None:
                before.ends[rank] = noted.at
        elif noted.reply is not None:
            self._replies[noted.reply.seq, rank] = noted.reply
        elif before is not None and (before.seq, rank) not in self._replies:
            _die(before, rank)  # with the process before


def _die(cell: PastCell, rank: int) -> None:
    cell.records[rank].died = "its process ended in this cell"


class Following:
    """A cell of a history, with its output from the beginning, and on as long as it runs.

    Args:
      ranks: whose output is read; all that were to run the cell by default.
      on_output: called with each output, as for a cell of this notebook.

    Attributes:
      cell: as it was at the last look.
      record: the same of these ranks alone.
    """

    def __init__(
        self,
        history: History,
        cell: PastCell,
        ranks: Sequence[int] | None = None,
        on_output: Listener = lambda record, what: None,
    ) -> None:
        records = {r: cell.records[r] for r in cell.ranks if ranks is None or r in ranks}
        self.cell = cell
        self.record = dataclasses.replace(cell, ranks=list(records), records=records)
        self._history, self._on_output = history, on_output
        self._at: dict[int, int] = {}

    def look(self) -> CellRecord:
        """``record``, with what has come since the last look."""
        if self.cell.state == RUNNING:
            self._history.look()  # first: output from before the end that is seen here is read
        starts = self.cell.starts
        self._at = {rank: starts[rank] for rank in self.record.ranks if rank in starts} | self._at
        for rank, part in _read(self._history.world, "output", self._at, self._has_more):
            self._take(rank, part.start, bytes(part.data))
        self.record.seconds = self.cell.seconds
        return self.record

    def _has_more(self, rank: int) -> bool:
        end = self.cell.ends.get(rank)
        return end is None or self._at[rank] < end

    def _take(self, rank: int, start: int, data: bytes) -> None:
        """Lines of a rank's output, which begin at ``start``."""
        end = self.cell.ends.get(rank)
        if (gone := (start if end is None else min(start, end)) - self._at[rank]) > 0:
            told = f"[{gone:,} bytes of output before this are not kept]\n"
            self._add(rank, "stream", {"name": "stderr", "text": told})
        kept = data if end is None else data[: max(0, end - start)]
        for line in kept.splitlines():
            with contextlib.suppress(ValueError):  # half a line
                self._add(rank, *json.loads(line))

    def _add(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        output = wire.RankOutput(rank, self.cell.seq, kind, content)
        self.record.add_output(output)
        self._on_output(self.record, output)

    def follow(self, check: Callable[[], object]) -> None:
        """Read on until it has ended on all its ranks.

        Args:
          check: called at each look; may raise to end this.
        """
        while self.cell.state == RUNNING:
            check()
            began = time.monotonic()
            self.look()
            time.sleep(max(LOOK_S, 5 * (time.monotonic() - began)))  # of many ranks not at once


def _read(
    world: World, log: str, at: dict[int, int], has_more: Callable[[int], bool] = lambda rank: True
) -> Iterator[tuple[int, Part]]:
    """The ranks' lines from the positions ``at`` on, which move with it."""
    wanted = [rank for rank in at if has_more(rank)]
    while wanted:
        found = world.processes.read_history(log, {rank: at[rank] for rank in wanted})
        wanted = []
        for rank, part in found.items():
            yield rank, part
            has_moved, at[rank] = at[rank] < part.end, part.end
            if has_moved and part.end < part.size and has_more(rank):
                wanted.append(rank)
