"""A queued cell begins only when the cells before it have ended alike on all their ranks.

Else a rank that has skipped a collective in one cell makes the next cell's in its place: counts are
even again, and numbers wrong. A notebook that waits for each cell's end says with the next one that
it is ``settled``, and this costs nothing. Where cells are queued, of one notebook or of several,
each rank writes how the cell before has ended into the coordination service's store and reads how
it has ended on the others: all see the same, and decide alike (``wire.cell_ends``). What is not
even is for the notebook to repair, which then says so (``clear``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jaxcluster import wire
from jaxcluster.engine.private.coordination import Store

POLL_S = 0.001
SLOW_POLL_S = 0.02  # once a rank is so late that it hardly matters
SETTLED = "settled"  # in place of a rank: a notebook has said so to some of the cell's ranks
KEPT = 64  # cells that nobody has called settled: those of notebooks that wait for each are soon


@dataclass(frozen=True)
class _Ended:
    """A cell that has ended here and may not have on other ranks."""

    ident: bytes  # the notebook's
    ranks: tuple[int, ...]
    end: wire.cell_ends.CellEnd


class Gate:
    """One rank's.

    Args:
      rank: this one.
      find_store: returns the store, or None. Without one all cells begin at once, and it is
        found at their ends whether they have launched the same.
    """

    def __init__(self, rank: int, find_store: Callable[[], Store | None]) -> None:
        self.rank = rank
        self._find_store = find_store
        self._ended: dict[int, _Ended] = {}
        self._written: list[str] = []
        # Cells that have not ended alike, and whether their ranks were cut short.
        self._closed: dict[int, bool] = {}
        self._cleared: deque[int] = deque(maxlen=KEPT)
        self._waits_for: int | None = None

    @property
    def waits_for(self) -> list[int]:
        """[] or the cell whose end the next one waits for: its seq, then its ranks. Any thread."""
        seq = self._waits_for
        entry = self._ended.get(seq) if seq is not None else None
        return [seq, *entry.ranks] if seq is not None and entry is not None else []

    @property
    def is_cut_short(self) -> bool:
        """Whether that one is known to have been cut short (``cell_ends``). Any thread."""
        return self._closed.get(self._waits_for or 0, False)

    def unsettled(self) -> dict[int, wire.cell_ends.CellEnd]:
        """How the cells have ended here that nobody has called settled, by seq. Any thread."""
        return {seq: entry.end for seq, entry in self._ended.copy().items()}

    def ended(self, cell: wire.CellRequest, ident: bytes, end: wire.cell_ends.CellEnd) -> None:
        """A cell has ended here."""
        if len(cell.ranks) > 1 and cell.seq not in self._cleared:
            self._ended[cell.seq] = _Ended(ident, tuple(cell.ranks), end)
            for old in list(self._ended)[:-KEPT]:
                self._forget(old)

    def clear(self, seqs: Iterable[int]) -> None:
        """These cells are settled, whatever they had launched. Any thread."""
        for seq in seqs:
            self._cleared.append(seq)  # it may not have come to its turn here
            self._forget(seq)

    async def wait(
        self, cell: wire.CellRequest, ident: bytes, is_wanted: Callable[[], bool]
    ) -> None:
        """Return when the cell may begin, or once it is wanted no more."""
        for seq, entry in list(self._ended.items()):
            if entry.ident == ident and seq <= cell.settled:
                self._forget(seq)
                others = not set(entry.ranks) <= set(cell.ranks)  # which don't hear of it
                if others and (store := self._find_store()) is not None:
                    store.write(f"{seq}/{SETTLED}", "")
        if not self._ended or (store := self._find_store()) is None:
            return
        for seq in list(self._ended):  # also those that this cell does not wait for: others may
            self._write(store, seq)
        pause_s = POLL_S
        try:
            while is_wanted() and (before := self._before(cell)) is not None:
                if before not in self._closed and self._may_pass(store, before):
                    self._forget(before)
                    continue
                self._waits_for = before
                with contextlib.suppress(asyncio.CancelledError):  # by a cell: not its business
                    await asyncio.sleep(pause_s)
                pause_s = min(SLOW_POLL_S, pause_s * 1.2)
        finally:
            self._waits_for = None

    def _before(self, cell: wire.CellRequest) -> int | None:
        """The first cell whose end on all its ranks this one has to wait for."""
        for seq, entry in list(self._ended.items()):
            if seq < cell.seq and wire.cell_ends.guards(entry.ranks, cell.ranks):
                return seq
        return None

    def _write(self, store: Store, seq: int) -> None:
        """Tell the other ranks how cell ``seq`` has ended here."""
        key, entry = f"{seq}/{self.rank}", self._ended.get(seq)
        if entry is not None and key not in self._written:
            store.write(key, json.dumps(vars(entry.end)))
            self._written.append(key)
            while len(self._written) > KEPT:  # no rank comes to that one any more
                store.delete(self._written.pop(0))

    def _may_pass(self, store: Store, seq: int) -> bool:
        """Whether cell ``seq`` has ended on all its ranks, and alike."""
        entry = self._ended.get(seq)
        if entry is None:  # cleared just now
            return True
        told = store.read(str(seq))
        if SETTLED in told:
            return True
        if len(told) < len(entry.ranks):
            return False
        ends = {
            int(rank): wire.cell_ends.CellEnd(**json.loads(text)) for rank, text in told.items()
        }
        if wire.cell_ends.may_go_on(ends):
            return True
        self._closed[seq] = wire.cell_ends.were_cut_short(ends)
        return False

    def _forget(self, seq: int) -> None:
        self._ended.pop(seq, None)
        self._closed.pop(seq, None)
