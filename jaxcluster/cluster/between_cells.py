"""A place among all notebooks' cells for what is not a cell: values, checkpoints, strict mode.

Ranks hear each notebook by a socket of its own, so what is not a cell may come before another
notebook's cell on one rank and after it on another: it needs the turn to hand out cells meanwhile.
And a cell that has ended on all ranks may yet turn out to have gone wrong, and be undone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jaxcluster.cluster.world import World
from jaxcluster.errors import NoCluster, RankHung
from jaxcluster.model.lockstep import in_lockstep
from jaxcluster.model.notices import warn
from jaxcluster.wire import cell_ends
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.lockstep import AtRest, Rest

ASK_S = 2.0  # for answers that a control channel gives at once
HOLD_S = 2.0  # that cells get to end while the turn is had, which those that go wrong need
LOOK_S = 0.005  # between looks while the turn is had
AGAIN_S = 0.02  # before it is had again
CELLS_S = 600.0  # that cells get to end
SETTLE_HINT = "%jaxcluster resync brings the ranks back into lockstep."
NOT_SETTLED = f"The ranks are not in lockstep: what is read of them now may be wrong. {SETTLE_HINT}"


class Notebook(Protocol):
    """A ``Cluster``, as far as its place among the cells goes."""

    @property
    def world(self) -> World: ...
    @property
    def cells(self) -> Sequence[Any]: ...
    @property
    def sent(self) -> Sequence[Any]: ...
    @property
    def closed(self) -> bool: ...
    @property
    def is_broken(self) -> bool: ...
    def carry_unwaited(self) -> None: ...
    def submit(self, source: str) -> Any: ...


class Standing(NamedTuple):
    """What the ranks are in where a notebook has the turn.

    Attributes:
      busy: those that do not end the last cell that each was sent, within ``HOLD_S``.
      unsettled: the seqs of cells that have not ended alike, of which nobody has said more.
      is_even: all have launched as often.
    """

    busy: list[int]
    unsettled: set[int]
    is_even: bool


def standing(rests: Mapping[int, Rest], last: Mapping[int, int]) -> Standing:
    """What the ranks are in; ``last``: the cell that each has to have had."""
    busy = [r for r, rest in rests.items() if not rest.is_free or rest.taken < last.get(r, 0)]
    ends: dict[int, dict[int, cell_ends.CellEnd]] = {}
    for rank, rest in rests.items():
        for seq, end in rest.ends.items():
            ends.setdefault(seq, {})[rank] = end
    wrong = {seq for seq, each in ends.items() if not cell_ends.may_go_on(each)}
    return Standing(busy, wrong, in_lockstep({r: rest.launches for r, rest in rests.items()}))


@contextlib.contextmanager
def place(
    notebook: Notebook, timeout_s: float = CELLS_S, warn: Callable[[str], None] = warn
) -> Iterator[None]:
    """Within, no cell of any notebook runs, waits, or is on its way, and all are settled.

    Where the ranks have diverged, and nobody brings them back, it warns of that instead.

    Raises:
      RankHung: a rank is still in a cell then, and where; or a cell is not settled.
      Divergence: another notebook's cell had gone wrong; what became of it is said.
    """
    settle_cells(notebook)
    give_up, is_behind = time.monotonic() + timeout_s, False
    while True:
        world = notebook.world
        with _turn(world) as ranks:
            if notebook.world is not world:
                continue  # a restart had the turn: this one is nobody's any more
            unsettled = ranks.unsettled - world.own_cells
            unsettled |= ranks.unsettled & {cell.record.seq for cell in notebook.cells}
            is_even = ranks.is_even or is_behind or not _is_behind_others(notebook)
            is_lost = notebook.is_broken and not notebook.cells  # nobody settles anything now
            is_settled = is_even and not unsettled
            if not ranks.busy and (is_lost or is_settled):
                if not (is_settled or world.dead):
                    warn(NOT_SETTLED)
                yield
                return
        if is_lost or time.monotonic() > give_up:
            if ranks.busy:
                raise world.unanswered(ranks.busy, HOLD_S if is_lost else timeout_s)
            raise RankHung("A cell that went wrong is not settled.", SETTLE_HINT, world.link.ranks)
        is_behind = not notebook.cells and _settle_others(notebook, is_certain=True)
        if not is_behind:
            time.sleep(AGAIN_S)


def settle_cells(notebook: Notebook) -> None:
    """Have the cells settled that the ranks have: they answer behind these.

    Raises:
      Divergence: another notebook's cell had gone wrong; what became of it is said.
    """
    notebook.carry_unwaited()
    _settle_others(notebook)


@contextlib.contextmanager
def _turn(world: World) -> Iterator[Standing]:
    """The turn to hand out cells, and what the ranks are in then."""
    with contextlib.ExitStack() as turn:
        found = Standing([], set(), True)
        with contextlib.suppress(NoCluster):  # nobody can hand out a cell any more
            found = _at_rest(world, turn.enter_context(world.turns.quiet()))
        yield found


def _at_rest(world: World, last: Mapping[int, int]) -> Standing:
    world.check()
    until = time.monotonic() + HOLD_S
    while True:
        is_late = time.monotonic() > until
        # One that says nothing is told of by what is asked of it then.
        rests = replies(world.link.gather(world.link.ranks, AtRest(), timeout_s=ASK_S))
        # One whose notebook has died over sending it may never come.
        found = standing(rests, {} if is_late else last)
        if is_late or not found.busy:
            return found
        time.sleep(LOOK_S)


def _settle_others(notebook: Notebook, is_certain: bool = False) -> bool:
    """Go behind another notebook's last cell: what that leaves as it is, a cell here finds.

    ``is_certain``: there is something to find. Whether a cell was run.

    Raises:
      Divergence: that cell had gone wrong; what became of it is said.
    """
    if notebook.closed or notebook.is_broken or not (is_certain or _is_behind_others(notebook)):
        return False
    if not is_certain:
        states = notebook.world.status()
        is_certain = any(s.state != "idle" or s.queued for s in states)
        is_certain = is_certain or not in_lockstep({s.rank: s.launches for s in states})
    if is_certain:
        notebook.submit("").wait()
    return is_certain


def _is_behind_others(notebook: Notebook) -> bool:
    """Whether the last cell is another notebook's."""
    sent = max((cell.record.seq for cell in notebook.sent), default=0)
    return max(notebook.world.turns.last_cells().values(), default=0) > sent
