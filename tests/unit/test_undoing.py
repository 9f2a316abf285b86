"""What taking a cell back on all ranks comes to, in words, and when it is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.allocation.turns import LocalTurns
from jaxcluster.cluster import undoing
from jaxcluster.cluster.undoing import Undone, parse_limit, plan_of
from jaxcluster.errors import UsageError
from jaxcluster.lockstep import actions
from jaxcluster.records import registry
from jaxcluster.wire.link import Event
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.state import ALREADY_UNDONE, Undo, UndoDrop, UndoLooked
from jaxcluster.wire.ops.values import Unbind

look = UndoLooked


def test_names_of_all_ranks_are_told_once() -> None:
    plan = plan_of(
        [
            look(back=["a", "b"], made=["y"]),
            look(back=["b"], in_place=["c"], made=["z"]),
        ]
    )
    assert plan == Undone(back=("a", "b", "c"), made=("y", "z"))
    assert plan.told("This cell") == ("This cell is undone. Restored a, b, c; removed y, z.")


def test_no_name_is_called_what_it_was_if_it_is_not_known() -> None:
    plan = plan_of([look(back=["a"], in_place=["model"], opaque={"model": "a Param", "a": "a Q"})])
    assert plan.told("Cell [3]") == (
        "Cell [3] is undone. Perhaps changed in place, and not put back: a (a Q), model (a Param)."
    )


def test_one_name() -> None:
    assert Undone(back=("a",)).told("Cell [3]") == ("Cell [3] is undone. Restored a.")
    assert Undone(made=("a",)).told("Cell [3]") == "Cell [3] is undone. Removed a."
    assert Undone().told("This cell") == "This cell is undone: it had changed no variable."


def test_what_one_rank_can_not_put_back_is_claimed_for_none() -> None:
    plan = plan_of(
        [
            look(back=["p"], in_place=["big", "short", "fine"]),
            look(donated=["p"], too_large=["big"], failed=["short"], opaque={"it": "a generator"}),
        ]
    )
    assert plan == Undone(
        back=("fine",),
        lost=("p",),
        failed=("big", "short"),
        unknown={"it": "a generator"},
    )
    assert plan.told("This cell") == (
        "This cell is undone. Restored fine. Lost, since donated or deleted: p. "
        "Changed in place and not put back: big, short. Perhaps changed in place, and not put "
        "back: it (a generator)."
    )


def test_a_refusal_says_what_is_not_to_be_trusted() -> None:
    refused = Undone("rank 1: no answer")
    assert refused.told("This cell", ["a", "b"]) == (
        "Don't trust what this cell assigned: a, b (not undone: rank 1: no answer)."
    )
    assert refused.told("This cell") == ("What this cell changed is not undone: rank 1: no answer.")


class FakeLink:
    """Ranks that answer a look and an undo."""

    def __init__(
        self, looks: dict[int, Any], undone: dict[int, Any], states: dict[int, Any] | None = None
    ) -> None:
        self.answers = {"undo_look": looks, "undo": undone, "state": states or {}}
        self.asked: list[Operation[Any]] = []
        self.dropped: list[int] = []
        self.unbound: dict[int, list[str]] = {}

    def request_each(self, each: Any, *, sink: Any) -> None:
        for rank, request in each.items():
            if isinstance(request, Unbind):
                self.unbound[rank] = request.names
            else:
                assert type(request) is UndoDrop
                self.dropped.append(rank)

    def gather(
        self, ranks: Any, request: Operation[Any], *, timeout_s: float
    ) -> dict[int, Event[Any]]:
        self.asked.append(request)
        found = {}
        for rank in ranks:
            answer = self.answers[request.op].get(rank)
            if answer == "died":
                found[rank] = Event(rank, "died", "", wire.Death("killed by SIGKILL"))
            elif isinstance(answer, str):
                found[rank] = Event(rank, "error", "", wire.Failure("UsageError", answer))
            elif answer is not None:
                found[rank] = Event(rank, "reply", "", answer)
        return found


def undo(
    link: Any,
    turns: Any,
    seq: int,
    ranks: list[int],
    *,
    holds_others: bool = False,
    looked: Any = frozenset(),
    **how: Any,
) -> Undone:
    """Take a cell back that people call [9]."""
    world: Any = SimpleNamespace(link=link, turns=turns, hear_undo=lambda seq, in_doubt: None)
    asked = actions.Undo(tuple(ranks), holds_others, **how)
    return undoing.undo(world, seq, 9, asked, looked=looked)


@pytest.fixture
def name(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    root = tmp_path_factory.mktemp("r")  # a short path
    monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", str(root))
    assert registry.runtime_root() == root
    registry.folder("main").mkdir()
    return "main"


def test_what_is_right_stays_where_an_undo_would_lose_it(name: str) -> None:
    turns = LocalTurns(name)
    looks = {0: look(back=["w"], donated=["w"]), 1: look(back=["w"])}
    link: Any = FakeLink(looks, {0: [], 1: []})
    kept = undo(link, turns, 1, [0, 1], stays_but=frozenset())
    assert kept.kept == ("w",) and kept.refused
    assert [one.op for one in link.asked] == ["undo_look"]
    assert kept.told("This cell") == (
        "What this cell did is kept: its ranks have launched the same, and were stopped in the "
        "same place, and an undo can't give back what was donated: w."
    )


@pytest.mark.parametrize("stays_but", [None, frozenset(["w"])])
def test_what_is_lost_anyway_is_undone(name: str, stays_but: frozenset[str] | None) -> None:
    looks = {0: look(back=["w"], donated=["w"]), 1: look(back=["w"])}
    link: Any = FakeLink(looks, {0: [], 1: []})
    undone = undo(link, LocalTurns(name), 1, [0, 1], stays_but=stays_but)
    assert undone == Undone(lost=("w",))


def test_what_is_lost_is_lost_also_where_the_cell_was_stopped_before_its_turn(name: str) -> None:
    looks = {0: look(back=["w"], donated=["w"])}
    link: Any = FakeLink(looks, {0: [], 1: []})
    undone = undo(link, LocalTurns(name), 1, [0], unbegun=[1])
    assert undone == Undone(lost=("w",))
    assert link.unbound == {1: ["w"]}


def test_nothing_stays_where_nothing_is_lost(name: str) -> None:
    link: Any = FakeLink({0: look(back=["w"]), 1: look(back=["w"])}, {0: [], 1: []})
    undone = undo(link, LocalTurns(name), 1, [0, 1], stays_but=frozenset())
    assert undone == Undone(back=("w",))


def test_no_rank_is_told_to_undo_before_all_can(name: str) -> None:
    link = FakeLink({0: look(back=["a"]), 1: "it is let go"}, {})
    undone = undo(link, LocalTurns(name), 1, [0, 1])
    assert undone == Undone("rank 1: it is let go")
    assert [one.op for one in link.asked] == ["undo_look"]
    assert link.dropped == [0, 1]  # what waits there for the undo goes on
    assert (
        undo(FakeLink({0: look()}, {}), LocalTurns(name), 1, [0, 1]).refused
        == "rank 1: no answer within 5 s (nothing was changed: try %jaxcluster undo again)"
    )


def test_what_another_notebook_had_begun_to_undo_is_ended(name: str) -> None:
    """It was killed when one rank had done so; the others would keep what the cell had made."""
    link = FakeLink({0: ALREADY_UNDONE, 1: look(back=["a"])}, {1: []})
    assert undo(link, LocalTurns(name), 1, [0, 1]) == Undone(back=("a",))
    link = FakeLink({0: ALREADY_UNDONE, 1: ALREADY_UNDONE}, {})
    assert undo(link, LocalTurns(name), 1, [0, 1]) == Undone(ALREADY_UNDONE)


def test_what_is_told_to_one_is_told_to_all(name: str) -> None:
    done: list[str] = []
    link = FakeLink(
        {0: look(back=["a"], donated=["x"]), 1: look(too_large=["b"], failed=["c"])},
        {0: done, 1: ["a"]},
    )
    undone = undo(link, LocalTurns(name), 7, [0, 1])
    lost = {"x": "was lost in cell [9] (donated or deleted)"}
    assert link.asked[1] == Undo(7, ["b", "c"], lost)
    assert undone.failed == ("a", "c")
    assert undone.back == ()


@pytest.mark.parametrize(
    ("looks", "done"),
    [
        ({0: look(back=["a"]), 1: "died"}, {0: [], 1: "died"}),
        ({0: look(back=["a"]), 1: look(back=["a"])}, {0: [], 1: "died"}),
    ],
    ids=["before the look", "after it"],
)
def test_a_rank_that_dies_meanwhile_does_not_keep_the_others_from_it(
    name: str, looks: dict[int, Any], done: dict[int, Any]
) -> None:
    undone = undo(FakeLink(looks, done), LocalTurns(name), 1, [0, 1])
    assert undone.back == ("a",)


def test_a_later_cell_refuses_it_before_anybody_is_asked(name: str) -> None:
    with LocalTurns(name).take([0, 1]) as first:
        pass
    with LocalTurns(name).take([1]):
        pass
    link = FakeLink({0: look()}, {0: []})
    assert undo(link, LocalTurns(name), first, [0, 1]).refused == "another cell has been sent since"
    assert link.asked == []
    assert undo(link, LocalTurns(name), first, [0]).refused == ""


def test_a_look_at_an_error_since_does_not_refuse_it(name: str) -> None:
    with LocalTurns(name).take([0, 1]) as first:
        pass
    with LocalTurns(name).take([1]) as looked:
        pass
    link: Any = FakeLink({0: look(), 1: look()}, {0: [], 1: []})
    assert undo(link, LocalTurns(name), first, [0, 1], looked={looked}).refused == ""


def test_a_stopped_cluster_refuses_it(name: str) -> None:
    assert undo(FakeLink({}, {}), LocalTurns("gone"), 1, [0]).refused == "the cluster is stopped"


@pytest.mark.parametrize(
    ("states", "holds", "refused"),
    [
        ({0: {"taken": 4}, 1: {"taken": 5}}, False, ""),
        ({0: {"taken": 5}, 1: {"taken": 6}}, False, "another cell has been sent since"),
        ({0: {"taken": 5, "queued": 1}}, False, "another cell has been sent since"),
        ({0: {"taken": 5, "queued": 1, "gate": [5, 0]}}, False, "another cell has been sent since"),
        ({0: {"taken": 5, "queued": 1, "gate": [5, 0]}}, True, ""),
        ({0: {"taken": 5, "queued": 1, "gate": [6, 0]}}, True, "another cell has been sent since"),
        (
            {0: {"taken": 5}, 1: None},
            False,
            "rank 1: no answer within 5 s (nothing was changed: try %jaxcluster undo again)",
        ),
        ({0: {"taken": 5}, 1: "died"}, False, ""),
    ],
)
def test_where_the_turns_are_lost_with_the_first_host_the_ranks_know_what_has_come(
    monkeypatch: pytest.MonkeyPatch, states: dict[int, Any], holds: bool, refused: str
) -> None:
    monkeypatch.setattr(undoing, "IN_FLIGHT_S", 0.0)
    answers = {
        rank: wire.RankState(rank, 7, "h2", "idle", **one) if isinstance(one, dict) else one
        for rank, one in states.items()
    }
    looks, done = {r: look(back=["a"]) for r in states}, {r: [] for r in states}
    link: Any = FakeLink(looks, done, answers)
    undone = undo(link, LocalTurns("gone"), 5, [*states], holds_others=holds)
    assert undone == (Undone(refused) if refused else Undone(back=("a",)))


@pytest.mark.parametrize(
    ("word", "nbytes"),
    [
        ("off", 0),
        ("on", None),
        ("2GiB", 2 << 30),
        ("2gb", 2_000_000_000),
        ("1.5GiB", 3 << 29),
        ("512MiB", 512 << 20),
        ("100k", 100_000),
        ("4096", 4096),
        ("4096B", 4096),
        ("0", 0),
    ],
)
def test_sizes(word: str, nbytes: int | None) -> None:
    assert parse_limit(word) == nbytes


@pytest.mark.parametrize("word", ["much", "-1", "2XB", "GiB", "nan", "inf", ""])
def test_what_is_no_size_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_limit(word)
