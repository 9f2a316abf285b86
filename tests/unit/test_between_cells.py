"""When values are asked for and bound: between the same cells of all notebooks, on all ranks."""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.cluster import Cluster, array_queries, between_cells, transfer
from jaxcluster.cluster.world import World
from jaxcluster.engine.app import Rank
from jaxcluster.engine.control import DEFERRED
from jaxcluster.errors import NoCluster, RankHung, UsageError
from jaxcluster.model import layout
from jaxcluster.model.notices import ClusterWarning
from jaxcluster.wire.cell_ends import CellEnd
from jaxcluster.wire.link import Event
from jaxcluster.wire.ops.lockstep import Rest
from jaxcluster.wire.ops.values import Describe, Described


def state(rank: int, what: str = "idle", taken: int = 7, queued: int = 0) -> wire.RankState:
    return wire.RankState(rank, 9, "here", what, taken=taken, ended=taken, queued=queued)


def rest(
    is_free: bool = True, taken: int = 7, status: str = "ok", own: int = 0, launches: int = 3
) -> Rest:
    """Of a rank that has ended cell 7 so, with so many launches in it."""
    made = {"0,1": [own, own]} if own else {}
    end = CellEnd(status, made, {"0,1": [launches, launches]})
    return Rest(is_free, taken, {"0,1": [launches, launches]}, {7: end})


FREE = [rest(), rest()]
HAD = ["has the turn", "looks", "acts", "gives it back"]
IDLE = [state(0), state(1)]
AGAIN = ["gives it back", "goes behind"]


class Ranks(World):
    """Each look at them has the next answers; the last ones stay."""

    def __init__(self, *looks: list[Rest | None], is_lost: bool = False) -> None:
        self.looks, self.is_lost = list(looks), is_lost
        self.states = [IDLE, [state(0), state(1, "running")]]
        self.told: list[str] = []
        self.turns: Any = SimpleNamespace(quiet=self.have_turn, last_cells=lambda: {0: 7, 1: 7})
        self.num_processes = 2
        self.record: Any = SimpleNamespace(facts=[None, None])
        self.link: Any = SimpleNamespace(ranks=[0, 1], gather=self.gather)
        self.own_cells, self.dead = set(), {}

    @contextlib.contextmanager
    def have_turn(self) -> Iterator[dict[int, int]]:
        if self.is_lost:
            raise NoCluster("The first host is lost.", "")
        self.told.append("has the turn")
        try:
            yield {0: 7, 1: 7}
        finally:
            self.told.append("gives it back")

    def check(self) -> None:
        """It is open."""

    def gather(self, ranks: Any, request: Any, timeout_s: float) -> dict[int, Event[Any]]:
        self.told.append("looks")
        looks = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return {
            rank: Event(rank, "reply", "1", answer)
            for rank, answer in enumerate(looks)
            if answer is not None
        }

    def status(self) -> list[wire.RankState]:
        """At first no rank runs a cell."""
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


class Notebook:
    """One whose cells so far are ``own``; the last one on the ranks is 7."""

    def __init__(self, world: Ranks, own: tuple[int, ...] = (), judging: tuple[int, ...] = ()):
        self.world, self.link = world, world.link
        self.world.own_cells = set(own)
        self.cells = [SimpleNamespace(record=SimpleNamespace(seq=seq)) for seq in judging]
        self.sent = [SimpleNamespace(record=SimpleNamespace(seq=seq)) for seq in own]
        self.closed, self.divergence = False, None

    @property
    def dead(self) -> Any:
        return self.world.dead

    @property
    def is_broken(self) -> bool:
        return bool(self.dead) or self.divergence is not None

    def carry_unwaited(self) -> None:
        """Its cells are judged."""

    def submit(self, source: str) -> Any:
        self.world.told.append("goes behind")
        return SimpleNamespace(wait=lambda: None)

    def course(self, timeout_s: float = 60.0) -> list[str]:
        with between_cells.place(self, timeout_s):
            self.world.told.append("acts")
        return self.world.told


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between_cells, "HOLD_S", 0.02)
    monkeypatch.setattr(between_cells, "AGAIN_S", 0.001)


@pytest.mark.parametrize("busy", [rest(False), rest(taken=6)], ids=["runs", "is to come"])
def test_cells_that_run_or_are_on_their_way_are_waited_for(busy: Rest) -> None:
    assert Notebook(Ranks(FREE)).course() == HAD
    assert Notebook(Ranks([rest(), busy], FREE)).course() == [*HAD[:2], *HAD[1:]]


@pytest.fixture
def replaced() -> tuple[Notebook, Ranks, Ranks]:
    """A notebook whose restart has the turn when it asks for it; the ranks before, and after."""
    old, new = Ranks(FREE), Ranks(FREE)
    notebook, taken = Notebook(old), old.turns.quiet

    @contextlib.contextmanager
    def behind_a_restart() -> Iterator[dict[int, int]]:
        notebook.world = new
        with taken() as last:
            yield last

    old.turns.quiet = behind_a_restart
    return notebook, old, new


def test_a_turn_of_ranks_that_a_restart_has_replaced_is_nobodys(
    replaced: tuple[Notebook, Ranks, Ranks],
) -> None:
    notebook, old, _ = replaced
    assert notebook.course() == HAD
    assert "acts" not in old.told


def test_a_value_is_not_pulled_in_the_turn_of_replaced_ranks(
    replaced: tuple[Notebook, Ranks, Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook, _, new = replaced
    pulled: list[tuple[Any, ...]] = []
    monkeypatch.setattr(transfer, "pull", lambda *given: pulled.append(given))
    monkeypatch.setattr(between_cells, "settle_cells", lambda notebook: None)
    Cluster.pull(notebook, "x")  # type: ignore[arg-type]
    assert pulled == [(new, "x")]
    assert new.told == ["has the turn", "looks", "gives it back"]


def test_a_cell_that_runs_for_long_gets_the_turn_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs it to bring the ranks back, and would not end. A cell finds what is wrong."""
    monkeypatch.setattr(between_cells, "HOLD_S", -1.0)
    assert Notebook(Ranks([rest(False), rest()], FREE)).course() == [*HAD[:2], *AGAIN, *HAD]
    own = Notebook(Ranks([rest(False), rest()], FREE), own=(7,), judging=(7,))
    assert own.course() == [*HAD[:2], "gives it back", *HAD]
    withdrawn = Notebook(Ranks([rest(False), rest()], FREE), own=(7,))
    assert withdrawn.course() == [*HAD[:2], *AGAIN, *HAD], "the ranks are in the cell before it"


@pytest.mark.parametrize(
    "wrong",
    [
        [rest(own=1, launches=4), rest()],
        [rest(status="interrupted"), rest()],
        [rest(launches=4), rest(launches=4, own=1)],
    ],
    ids=["one has launched more", "one was interrupted", "one has left it to a thread"],
)
def test_a_cell_that_went_wrong_is_settled_before(wrong: list[Rest | None]) -> None:
    """Its notebook finds that a moment later, and undoes it: what it has made is no value."""
    others = Notebook(Ranks(wrong, FREE))
    assert others.course() == [*HAD[:2], *AGAIN, *HAD]
    own = Notebook(Ranks(wrong, wrong, FREE), own=(7,), judging=(7,))
    assert own.course() == [*HAD[:2], "gives it back", *HAD[:2], "gives it back", *HAD]
    judged = Notebook(Ranks(wrong), own=(7,))
    assert judged.course() == HAD


def test_no_cell_goes_behind_ones_own_nor_from_a_notebook_that_is_closed() -> None:
    for own, closed, told in (((7,), False, []), ((), True, []), ((), False, ["goes behind"])):
        notebook = Notebook(Ranks(FREE), own=own)
        notebook.world.states = [[state(0), state(1, "running")]]
        notebook.closed = closed
        between_cells.settle_cells(notebook)
        assert notebook.world.told == told


def test_uneven_ranks_are_looked_at_by_one_cell() -> None:
    """A thread of the user's may be about to make them even."""
    uneven = [rest(launches=4), rest()]
    for each in uneven:
        each.ends.clear()
    assert Notebook(Ranks(uneven)).course() == [*HAD[:2], *AGAIN, *HAD]
    assert Notebook(Ranks(uneven), own=(7,)).course() == HAD


def test_what_is_not_settled_in_time_is_told() -> None:
    wrong = [rest(own=1, launches=4), rest()]
    with pytest.raises(RankHung, match="A cell that went wrong is not settled"):
        Notebook(Ranks(wrong), own=(7,), judging=(7,)).course(0.02)
    lost = Notebook(Ranks(wrong))
    lost.divergence = object()
    with pytest.warns(ClusterWarning, match="what is read of them now may be wrong"):
        assert lost.course() == HAD, "its values can be had as they are"
    lost = Notebook(Ranks([rest(False), rest()]))
    lost.divergence = object()
    with pytest.raises(RankHung, match=re.escape("Rank 0 did not answer within 0.02 s")):
        lost.course()
    dead = Notebook(Ranks(wrong))
    dead.world.dead = {1: {}}
    assert dead.course() == HAD, "who asks the ranks is told"
    dead = Notebook(Ranks(wrong, FREE), own=(7,), judging=(7,))
    dead.world.dead = {1: {}}
    assert dead.course() == [*HAD[:2], "gives it back", *HAD], "its cell is judged and undone first"


def test_what_will_never_come_is_not_waited_for() -> None:
    assert Notebook(Ranks([rest(), rest(taken=6)])).course()[-2:] == HAD[-2:]  # its notebook died
    assert Notebook(Ranks([rest(), None])).course() == HAD
    stuck = Notebook(Ranks([rest(), rest(False)]))
    said = "Rank 1 did not answer within 0.02 s. Rank 1 is in cell"
    with pytest.raises(RankHung, match=re.escape(said)):
        stuck.course(0.02)
    told = stuck.world.told
    assert told.count("has the turn") == told.count("gives it back")
    assert Notebook(Ranks(FREE, is_lost=True)).course() == ["acts"]


def test_strict_mode_begins_between_cells() -> None:
    """On in another notebook's cell on one rank, and off on the other, it would wait for ever."""
    ranks: Any = Ranks([rest(False), rest()], FREE)
    ranks.ask = lambda *asked, **more: ranks.told.append("acts")
    cluster = strict_cluster(ranks)
    Cluster.strict(cluster, True)
    assert ranks.told == [*HAD[:2], *HAD[1:]]


def test_new_processes_are_strict_without_a_second_turn() -> None:
    """Who brings them has it, and waited for it for ever."""
    ranks: Any = Ranks(FREE)
    ranks.ask = lambda *asked, **more: ranks.told.append("acts")
    cluster = strict_cluster(ranks)
    Cluster.equip(cluster)
    assert ranks.told == ["acts"] and ranks.is_strict


def strict_cluster(ranks: Any) -> Any:
    made: Any = Notebook(ranks)
    made.num_processes, made.ensure_open = 2, lambda: None
    made.undo_nbytes, made.copies_nbytes, made.stays_strict = None, 0, True
    made._switch_strict = lambda on: Cluster._switch_strict(made, on)
    return made


@pytest.mark.parametrize(
    ("then", "now"),
    [(IDLE, [state(0), state(1, taken=8)]), ([state(0, "running")] * 2, IDLE)],
)
def test_copies_that_a_cell_makes_anew_meanwhile_are_not_said_to_differ(
    monkeypatch: pytest.MonkeyPatch, then: list[wire.RankState], now: list[wire.RankState]
) -> None:
    found = SimpleNamespace(name="x", differences=("one",))
    monkeypatch.setattr(layout, "compare", lambda *asked: found)
    ranks: Any = Ranks(FREE)
    ranks.ask_some = lambda *asked, timeout_s: ({0: 1}, {})
    looks = [then, now]
    ranks.status = lambda: looks.pop(0) if len(looks) > 1 else looks[0]
    with pytest.raises(UsageError, match="ran a cell meanwhile"):
        array_queries.check(ranks, "x")
    looks[:] = [IDLE]
    assert array_queries.check(ranks, "x") is found


def pulled(ranks: Any, *first: Rest) -> list[Any]:
    """The course of a pull, where the ranks are in these when they are asked at first."""
    each: list[dict[int, Any]] = []

    def ask(_: Any, asked: dict[int, Describe], **more: Any) -> dict[int, Any]:
        each.append({rank: one.after for rank, one in asked.items()})
        ranks.told.append("asks")
        is_first = next(iter(asked.values())).after is not None
        told = {r: Described([], [], rest=first[r] if is_first else None) for r in asked}
        return {r: Event(r, "reply", "", told[r], [pickle.dumps("value")]) for r in asked}

    ranks.ask, ranks.is_over, ranks.states = ask, False, [IDLE]
    ranks.link.request_each = lambda each, sink: ranks.told.append("lets go")
    assert Cluster.pull(Notebook(ranks), "x") == "value"  # type: ignore[arg-type]
    return [*each, *ranks.told]


def test_a_pull_asks_once_where_no_rank_runs_a_cell() -> None:
    turn = ["has the turn", "asks", "gives it back"]
    assert pulled(Ranks(FREE), *FREE) == [{0: 7, 1: 7}, *turn]
    again = ["has the turn", "looks", "asks", "gives it back"]
    once = ["has the turn", "asks", "lets go", "gives it back"]  # the other rank may have it
    uneven = rest(launches=4)
    uneven.ends.clear()
    for other in (rest(False), rest(taken=6), rest(status="interrupted"), uneven):
        course = [{0: 7, 1: 7}, {0: None, 1: None}, *once, *again]
        assert pulled(Ranks(FREE), rest(), other) == course
    assert pulled(Ranks(FREE, is_lost=True)) == [{0: None, 1: None}, "asks"]


@pytest.mark.parametrize(
    ("taken", "waiting", "current", "is_free"),
    [(7, 0, None, True), (8, 0, None, True), (6, 0, None, False), (7, 1, None, False),
     (7, 0, "a cell", False)],
)  # fmt: skip
def test_a_rank_describes_what_is_after_a_cell_between_cells_alone(
    taken: int, waiting: int, current: Any, is_free: bool
) -> None:
    asked: list[Any] = []
    rank: Any = Rank.__new__(Rank)
    queue = type("Queue", (), {"taken": taken, "__len__": lambda self: waiting})()
    runner: Any = SimpleNamespace(queue=queue, current=current, in_turn=lambda handler: handler)
    runner.journal = SimpleNamespace(launches=dict)
    runner.gate = SimpleNamespace(unsettled=dict)
    rank.runner, rank.values = runner, SimpleNamespace(describe_value=None)
    rank.values.describe_value = lambda request, rest: None
    rank.control, rank.attached = SimpleNamespace(call_main=asked.append), True
    request: Any = SimpleNamespace(body=Describe("x", True, after=7))
    for body, is_now in ((request.body, is_free), (Describe("x", True), True)):
        request.body = body
        found = rank._describe(request)
        assert (found is DEFERRED) is is_now and len(asked) == is_now
        assert is_now or not found.rest.is_free
        asked.clear()
    rank.attached, request.body = False, Describe("x", True, after=7)
    assert not rank._describe(request).rest.is_free
