"""Which names come back on which ranks, from when, and what is said of those that don't."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.cluster import resizing, restart
from jaxcluster.cluster.restart import Restored, _dead, bound_names
from jaxcluster.cluster.what_returns import OWN, plan, successors, tell_unheard
from jaxcluster.cluster.world import World
from jaxcluster.errors import LaunchError, RecoveryError
from jaxcluster.model.last_known import LastKnown
from jaxcluster.model.outputs import CellRecord
from jaxcluster.records.saved_states import Dead, Kept
from jaxcluster.wire.link import Event
from jaxcluster.wire.ops.state import (
    RestoreBind,
    RestoreBound,
    RestoreLook,
    RestoreLooked,
    SavedBefore,
    SavedNames,
    SaveReport,
    Take,
)


def saved(digests, spanning=(), common=(), lost=None) -> SavedNames:
    return SavedNames(
        sorted(digests), lost or {}, list(spanning), list(common), digests, dict(digests)
    )


def report(names=(), lost=None, before=(), before_lost=None, absent=(), **more) -> SaveReport:
    """What a rank has saved: all names with one value on all ranks, unless ``more`` has digests."""
    now = saved(more.pop("digests", dict.fromkeys(names, "equal")), lost=lost)
    then = saved(dict.fromkeys(before, "older"), lost=before_lost)
    return SaveReport(**vars(now), before=SavedBefore(**vars(then), absent=list(absent)), **more)


# --------------------------------------------------------------------------- a dead rank


def dead(values=(), others=None, is_current=True, more=()) -> Dead:
    """A rank that had told these values, when the others had told theirs."""
    values = dict(values)
    names = frozenset({*values, *more})
    return Dead(names, is_current, {n: v for n, v in values.items() if v}, others or {})


def test_an_array_that_some_have_a_part_of_is_lost_with_a_rank_of_which_not_all_was_heard():
    reports = {1: saved({"d": ""}, spanning=["d"]), 2: saved({})}
    why = "rank 0, which died, may have had a part of it"
    assert successors(reports, {0: Dead()}).lost == {"d": why}
    assert successors(reports, {0: dead(is_current=False)}).lost == {"d": why}
    assert successors(reports, {0: dead(more=["d"])}).lost == {"d": OWN}
    assert successors(reports, {0: dead()}).lost == {}  # it never had it
    assert successors({1: saved({"log": "#a"}), 2: saved({})}, {0: Dead()}).lost == {}


def test_what_all_survivors_have_is_given_if_the_dead_rank_had_it_too():
    reports = {0: saved({"history": "#a"}), 2: saved({"history": "#a"})}
    found = successors(reports, {1: dead({"history": "#a"})})
    assert (found.shared, found.own, found.lost) == ({1: {"history"}}, {1: {}}, {})


def test_it_is_lost_if_the_dead_rank_had_another_value():
    """``is_main = process_index() == 0``, and rank 0 dies: all others have False."""
    reports = {1: saved({"cfg": "#a"}), 2: saved({"cfg": "#a"})}
    assert successors(reports, {0: dead({"cfg": "#b"})}).lost == {"cfg": OWN}


def test_it_is_lost_if_nobody_knows_what_the_dead_rank_had():
    reports = {1: saved({"data": ""}), 2: saved({"data": ""})}
    for one in (dead({"data": ""}), Dead(), dead(more=["data"], is_current=False)):
        assert successors(reports, {0: one}).lost == {
            "data": "rank 0, which died, may have had another value"
        }


def test_a_plain_value_of_its_own_is_what_it_was():
    reports = {1: saved({"is_main": "=False"}), 2: saved({"is_main": "=False"})}
    others = {1: {"is_main": "=False"}, 2: {"is_main": "=False"}}
    found = successors(reports, {0: dead({"is_main": "=True"}, others)})
    assert (found.own, found.shared, found.lost) == ({0: {"is_main": "True"}}, {0: set()}, {})


def test_a_value_that_survivors_have_changed_since_is_no_value_of_now():
    """The dead rank's step is 7 since it did not get so far, and theirs is 8."""
    reports = {1: saved({"step": "=8"}), 2: saved({"step": "=8"})}
    for others in ({1: {"step": "=7"}, 2: {"step": "=7"}}, {1: {"step": "=8"}}, {}):
        assert successors(reports, {0: dead({"step": "=7"}, others)}).lost == {"step": OWN}


def test_what_is_each_ranks_number_is_known_without_a_word():
    reports = {0: saved({"rank": "=0"}), 2: saved({"rank": "=2"})}
    assert successors(reports, {1: Dead()}).own == {1: {"rank": "1"}}
    assert successors({2: reports[2]}, {1: Dead()}).lost  # chance, perhaps
    assert successors({0: reports[0], 3: reports[2]}, {1: Dead()}).lost


def test_a_successor_gets_no_name_that_the_dead_rank_did_not_have():
    reports = {1: saved({"x": "#a"}), 2: saved({"x": "#a"})}
    found = successors(reports, {0: dead()})
    assert (found.shared, found.lost) == ({0: set()}, {})


def test_a_name_that_an_unfinished_cell_may_have_bound_is_not_said_to_have_been_there():
    one = Dead(frozenset({"a", "late"}), True, {"a": "equal"}, {}, frozenset({"late"}))
    reports = {0: report("a"), 1: report("a")}
    assert plan(reports, {2: one}).lost == {"late": "only rank 2 may have had it, and died"}


def test_a_name_that_only_some_survivors_have_is_nobody_elses():
    reports = {0: saved({"x": "#a", "mine": "#b"}), 1: saved({"x": "#a"})}
    found = successors(reports, {2: dead({"x": "#a"})})
    assert (found.shared, found.lost) == ({2: {"x"}}, {})


def test_one_that_the_dead_rank_had_too_is_half_gone_and_so_lost():
    reports = {0: saved({"mine": "#b"}), 1: saved({})}
    assert successors(reports, {2: dead({"mine": "#b"})}).lost == {"mine": OWN}


def test_where_a_rank_told_nothing_it_gets_what_can_be_no_ranks_own():
    reports = {0: saved({"np": "", "data": ""}, common=["np"])}
    found = successors(reports, {1: Dead()})
    assert found.shared == {1: {"np"}}
    assert found.lost == {"data": "the only survivor may have had its own value"}
    reports[2] = saved({"np": "", "data": ""}, common=["np"])
    reports[2].digests["np"] = "another"
    assert successors(reports, {1: Dead()}).lost["np"] == OWN
    # It told another one.
    assert successors({0: reports[0]}, {1: dead({"np": "#b"})}).lost["np"] == OWN


def test_of_two_dead_ranks_each_gets_its_own():
    reports = {2: saved({"main": "=False", "np": "#n"})}
    others = {2: {"main": "=False"}}
    found = successors(
        reports,
        {
            0: dead({"main": "=True", "np": "#n"}, others),
            1: dead({"main": "=False", "np": "#n"}, others),
        },
    )
    assert found.own == {0: {"main": "True"}, 1: {}}
    assert found.shared == {0: {"np"}, 1: {"main", "np"}}


# --------------------------------------------------------------------------- what was heard


def cell(seq: int, ranks: Sequence[int], source: str = "", ended: Sequence[int] = ()) -> CellRecord:
    record = CellRecord(seq, seq, source, ranks)
    for rank in ended:
        record.add_reply(wire.CellReply(rank, seq, "ok", 0.0))
    return record


def heard(seq: int, **values: str) -> LastKnown:
    found = LastKnown()
    found.hear(seq, wire.NameChanges(list(values), [], True, values))
    return found


def test_of_a_dead_rank_is_known_what_it_told_and_what_its_open_cells_bind():
    told = {0: heard(4, x="=1", unknown=""), 1: heard(4, x="=2")}
    told[1].hear(5, wire.NameChanges([], [], False, {"x": "=3"}))
    cells = [cell(4, [0, 1], ended=[0, 1]), cell(5, [0, 1], "y = 1", ended=[1])]
    found = _dead(told, cells, 0, last=5)
    assert found == Dead(
        frozenset({"x", "y", "unknown"}), True, {"x": "=1"}, {1: {}}, frozenset("y")
    )
    assert _dead(told, cells, 2, last=5, own={1, 2, 3}) == Dead()


def test_names_that_only_a_dead_rank_had_and_never_told_are_said_to_be_lost():
    """Another notebook's cell has ended there, and the word of it was late."""
    told = {0: heard(4), 1: heard(2)}
    cells = [cell(4, [0, 1, 2], ended=[0, 1, 2])]
    dead = {rank: _dead(told, cells, rank, last=5, own={1, 3}) for rank in range(3)}
    assert [one.unheard for one in dead.values()] == [4, 2, 0]
    assert tell_unheard(dead) == (
        "Names that rank 2 alone had are lost, too, and are not known here. "
        "Names that rank 1 alone had since cell [2] are lost, too, and are not known here. "
        "Names that rank 0 alone had since cell [4] are lost, too, and are not known here."
    )
    assert _dead(told, cells, 0, last=5, undone=5).unheard is None  # it is taken back
    assert _dead(told, cells, 0, last=5, own={5}).unheard is None
    assert _dead({}, cells, 0, last=6, own={6}, first=5).unheard is None  # new since a restart
    assert tell_unheard({0: Dead(frozenset("x"), True)}) == ""


def test_of_another_notebooks_cell_that_living_ranks_know_only_what_it_mentions_is_in_doubt():
    told = {rank: heard(4, x="=1", y="=2") for rank in range(2)}
    cells = [cell(4, [0, 1], ended=[0, 1])]
    found = _dead(told, cells, 1, last=5, own={1, 2, 3}, sources={5: "z = f(y)"})
    assert found == Dead(
        frozenset("xyz"), True, {"x": "=1"}, {0: {"x": "=1", "y": "=2"}}, frozenset("z")
    )
    found = _dead(told, cells, 1, last=6, own={1, 2, 3}, sources={5: "z = f(y)"})
    assert (found.is_current, found.unheard) == (False, 4), "nobody knows cell 6"
    found = _dead({}, cells, 1, last=5, own={1, 2, 3}, sources={5: "z = f(y)"})
    assert (found.names, found.unheard) == (None, 0), "it has told nothing: it may have had more"


def test_of_an_undone_cell_nothing_is_left():
    told = {0: heard(4, x="=1", y="=2"), 1: heard(4, x="=1", y="=2")}
    cells = [cell(4, [0, 1], ended=[0, 1]), cell(5, [0, 1], "y = z = 1", ended=[1])]
    assert _dead(told, cells, 0, 5, undone=5) == Dead(
        frozenset("xy"), True, {"x": "=1", "y": "=2"}, {1: {"x": "=1", "y": "=2"}}
    )


def test_what_waits_behind_a_cell_that_is_taken_back_is_taken_back_with_it():
    """Rank 2 was not in it, and has begun the next one; what has ended on all ranks stays."""
    cells = [
        cell(4, [2], ended=[2]),
        cell(5, [0, 1]),
        cell(6, [2], ended=[2]),
        cell(7, [0, 1, 2], ended=[2]),
        cell(8, [2]),
    ]
    assert restart.taken_back_on(cells, 5) == {0: 5, 1: 5, 2: 7}
    assert restart.taken_back_on(cells, 0) == {}
    told = {2: heard(6, x="=1")}
    assert _dead(told, [*cells[:3], cell(7, [2], "y = 1")], 2, 7, undone=5).names == {"x"}


def test_what_an_unfinished_cell_may_have_changed_is_not_known():
    """It may have been the last thing that the rank did; nobody has heard of it."""
    told = {0: heard(4, x="=1", y="=2", s="#1"), 1: heard(4, x="=1")}
    cells = [cell(5, [0, 1], "if r == 0: y = 3\ns.append(1)"), cell(6, [0, 1], "x")]
    assert _dead(told, cells, 0, 6).values == {}
    assert _dead(told, cells, 0, 6, undone=6).values == {"x": "=1"}


def test_what_another_notebook_may_have_changed_since_is_not_known():
    told = {0: heard(4, x="=1")}
    found = _dead(told, [cell(4, [0]), cell(6, [0])], 0, last=6)  # 5 was another notebook's
    assert found == Dead(frozenset({"x"}), unheard=4)


def test_what_something_else_than_a_cell_may_have_changed_is_not_known():
    one = heard(4, x="=1")
    one.spoil()
    cells = [cell(4, [0]), cell(5, [0], "z = 1")]
    assert _dead({0: one}, cells, 0, last=5) == Dead(frozenset({"x", "z"}), maybe=frozenset("z"))
    one.hear(5, wire.NameChanges(["x"], [], is_first=True, values={"x": "=2"}))
    assert _dead({0: one}, cells, 0, last=5).values == {"x": "=2"}


def test_what_only_the_dead_rank_had_is_named():
    had = dead({"a": "equal", "b": "equal"}, more=["only"])
    found = plan({0: report("ab"), 1: report("ab")}, {2: had})
    assert found.lost == {"only": "only rank 2 had it, and died"}
    assert found.shared == {2: {"a", "b"}}


def test_what_living_ranks_have_donated_is_not_told_as_a_dead_ranks_alone():
    unbound = {"p": "was lost in cell [4] (donated or deleted)"}
    reports = {0: report("a", unbound=unbound), 1: report("a", unbound=unbound)}
    found = plan(reports, {2: dead({"a": "equal"}, more="p")}, True)
    assert found.lost == {"p": "donated or deleted on ranks 0, 1, and rank 2 died"}


def test_no_dead_rank_is_named_for_what_another_one_may_have_had():
    """``if rank == 3: here = 5``, and the host of ranks 2 and 3 is lost while the cell runs."""
    had = dead({"a": "equal"}, more=["here"])
    found = plan({0: report("a"), 1: report("a")}, dict.fromkeys((2, 3), had))
    assert found.lost == {"here": "only ranks 2, 3 may have had it, and died"}


# --------------------------------------------------------------------------- all ranks alike


def test_a_name_that_one_rank_could_not_save_is_lost_on_all():
    found = plan({0: report("ab"), 1: report("a", lost={"b": "still being computed"})}, {})
    assert found.names == {"a"}
    assert found.lost == {"b": "still being computed"}


def test_what_is_still_being_computed_is_taken_from_before_the_cell_on_all_ranks():
    """Rank 0 has the new value, rank 1 waits for it, and rank 2 never got so far."""
    reports = {
        0: report(["params"], before=["params"]),
        1: report(lost={"params": "still being computed"}, before=["params"]),
        2: report(["params"]),
    }
    found = plan(reports, {})
    assert found.names == found.older == {"params"}
    assert found.lost == {}


def test_it_is_lost_where_a_rank_has_no_older_one_either():
    reports = {
        0: report(["params"], before_lost={"params": "deleted or donated"}),
        1: report(lost={"params": "still being computed"}, before=["params"]),
    }
    assert plan(reports, {}).lost == {"params": "still being computed"}


def test_a_rank_that_does_not_know_what_was_before_keeps_all_from_going_back():
    """Its newest value beside the others' older one would be silently wrong."""
    unknown = replace(report(["params"]), before=SavedBefore(known=False))
    reports = {
        0: unknown,
        1: report(lost={"params": "still being computed"}, before=["params"]),
    }
    for cell_is_undone in (False, True):
        found = plan(reports, {}, cell_is_undone)
        assert found.lost == {"params": "still being computed"}
        assert not found.older


def test_a_name_that_was_not_there_before_the_cell_is_lost():
    reports = {0: report(lost={"new": "still being computed"}, absent=["new"]), 1: report()}
    assert plan(reports, {}).lost == {"new": "still being computed"}
    undone = plan(reports, {}, cell_is_undone=True)
    assert undone.lost == {}
    assert undone.gone == {"new"}


def test_an_undone_cell_leaves_all_ranks_what_they_had_before_it():
    reports = {
        0: report(["params", "new", "old"], before=["params"], absent=["new"]),
        1: report(["params", "old"]),
    }
    found = plan(reports, {}, cell_is_undone=True)
    assert (found.names, found.older, found.gone) == ({"params", "old"}, {"params"}, {"new"})


def test_a_dead_ranks_successor_takes_the_value_from_before_the_cell_too():
    reports = {rank: report(["params"], before=["params"]) for rank in (0, 2)}
    reports[2].digests["params"] = "another one"  # it got no further than the cell's middle
    found = plan(reports, {1: dead({"params": "older"})}, cell_is_undone=True)
    assert found.shared[1] == found.older == {"params"}


# ------------------------------------------------------------------------- messages


def test_the_line_names_what_came_back_and_what_did_not():
    line = str(Restored(("a", "b"), {"g": "its only copy died with the rank"}, (2,), 1.24))
    assert line == (
        "New processes after 1.2 s, rank 2 replaced: 2 variables kept. "
        "Lost: g (its only copy died with the rank)."
    )


def test_all_lost_names_are_named():
    line = str(Restored((), {f"v{i:02}": "gone" for i in range(20)}))
    assert all(f"v{i:02} (gone)" in line.replace("\n ", "") for i in range(20))
    assert max(map(len, line.splitlines())) <= 100


def test_the_line_says_which_values_are_older():
    line = str(Restored(("p", "q"), seconds=1.0, older=("p",)))
    assert line == "New processes after 1.0 s: 2 variables kept. As before the cell: p."


def test_the_line_says_so_when_no_rank_lived():
    line = str(Restored((), {}, (0, 1), 0.5, nothing_lived=True))
    assert line == "New processes after 0.5 s: no rank survived, so all variables are lost."


class NewWorld:
    """Two new ranks, which answer as ``answer`` says."""

    all_of = World.all_of
    hear_bound = World.hear_bound
    hear_unbound = World.hear_unbound

    def __init__(self, answer: Callable[[int, Any], Any]) -> None:
        self.num_processes = 2
        self.processes = SimpleNamespace(idle_hosts=[])
        self.link = SimpleNamespace(
            ranks=[0, 1], gather=self._gather, request_each=self._request_each
        )
        self.told: dict[int, LastKnown] = {}
        self._answer = answer

    def _gather(self, ranks: Any, each: Any, **rest: Any) -> dict[int, Event[Any]]:
        bodies = {rank: self._answer(rank, one) for rank, one in each.items()}
        ops = {r: "error" if isinstance(b, wire.Failure) else "reply" for r, b in bodies.items()}
        return {rank: Event(rank, ops[rank], "", body) for rank, body in bodies.items()}

    def _request_each(self, each: Any, *, sink: Any) -> None:
        for rank, one in each.items():
            self._answer(rank, one)


def test_what_was_lost_with_all_ranks_is_named() -> None:
    """By the message, and by who uses it: with the cells that make it again."""
    sent: dict[int, Any] = {}
    two = {0: Dead(frozenset({"a", "mine"})), 1: Dead(frozenset({"a"})), 2: Dead()}
    makers = {"a": (2,), "mine": (3,)}
    kept = Kept(FOLDER, {}, False, two, 3, when="in cell [9]", made_by=makers)
    world: Any = NewWorld(sent.__setitem__)
    for bring in (restart.restore, resizing.restore):
        found = bring(world, kept, check)
        told = "no rank survived, so all variables are lost. They were a, mine. To make them again"
        assert f"{told}, run cells [2], [3]." in str(found)
        assert sent.keys() == {0, 1}
        why = "was lost in cell [9] (no rank survived); run cell [2] again to make it"
        assert sent.pop(0).lost["a"] == sent.pop(1).lost["a"] == why
    gone = replace(kept, gone={0: "the disk is gone"})
    found = restart.restore(world, gone, check)
    assert "Lost: a (what was saved is gone), mine (what was saved is gone)." in str(found)
    assert restart.restore(world, replace(kept, dead={}), check).lost == {}


def check() -> None:
    """Nobody gives it up."""


def test_the_names_that_a_cell_binds_are_its_own_statements():
    source = """
import numpy as np, os.path
from a import b as c
def function(x): inner = 1
class Model: field = 2
first, *rest = [comprehension for comprehension in range(3)]
for step in range(3): total += step
with open('f') as file: walrus = (named := 1)
try: pass
except ValueError as error: handled = 1
match rest:
    case [head, *tail]: pass
"""
    names = "np os c function Model first rest step total file walrus named handled head tail"
    assert bound_names(source) == sorted(names.split())
    assert bound_names("%time x = 1 2") == []


# --------------------------------------------------------------------------- saving


class Saving:
    """A world of three ranks, of which some die or fail while they are being saved."""

    def __init__(self, num_hosts: int = 1) -> None:
        self.num_processes = 3
        self.link = self
        self.dead: dict[int, Any] = {}
        facts = [SimpleNamespace(host_key=str(rank % num_hosts)) for rank in range(3)]
        self.record = SimpleNamespace(facts=facts)
        self.asked: list[tuple[list[int], bool]] = []
        self.answers: list[dict[int, Event[Any] | None]] = []

    def gather(self, ranks: Any, bodies: Any, *, timeout_s: float, check: Any) -> Any:
        self.asked.append((sorted(bodies), bodies[min(bodies)].digests))
        odd = self.answers.pop(0) if self.answers else {}
        for rank, event in odd.items():
            if event is not None and event.op == "died":
                self.dead[rank] = event.body
        found = {rank: odd.get(rank, Event(rank, "reply", "", {"of": rank})) for rank in bodies}
        return {rank: event for rank, event in found.items() if event is not None}


FOLDER: Any = SimpleNamespace(places_for=lambda rank: [], hint="Make room.")


def snapshots(world: Any) -> dict[int, Any]:
    return restart._snapshots(world, dict.fromkeys(range(3), 0), FOLDER, lambda: None, None)


def test_values_are_compared_where_a_rank_has_died_and_where_a_host_may_be_lost() -> None:
    world = Saving()
    assert sorted(snapshots(world)) == [0, 1, 2]
    assert world.asked == [([0, 1, 2], False)]  # it costs a second for each GB
    world = Saving(num_hosts=2)
    snapshots(world)
    assert world.asked == [([0, 1, 2], True)]
    world = Saving()
    world.dead[2] = {}
    snapshots(world)
    assert world.asked == [([0, 1], True)]


def test_a_rank_that_dies_while_it_is_saved_has_the_others_values_compared() -> None:
    """Its successor may have those only that are equal on all ranks."""
    world = Saving()
    world.answers = [{1: Event(1, "died", "", wire.Death("killed"))}]
    assert sorted(snapshots(world)) == [0, 2]
    assert world.asked == [([0, 1, 2], False), ([0, 2], True)]


def test_a_rank_that_lives_and_can_not_be_saved_ends_the_restart() -> None:
    no_room = Event(1, "error", "", wire.Failure("CannotSave", "no room"))
    at_limit = Event(1, "error", "", wire.Failure("AtLimit", "too many"))
    broken = Event(1, "error", "", wire.Failure("TypeError", "its dumps is None"))
    again = "Try again: %jaxcluster restart"
    for answer, why, hint in (
        (no_room, "no room", "Make room."),
        (at_limit, "too many", restart.AT_LIMIT),
        (broken, "its dumps is None", again),
        (None, "no answer within 300 s", again),
    ):
        world = Saving()
        world.answers = [{1: answer}]
        with pytest.raises(RecoveryError) as caught:
            snapshots(world)
        assert caught.value.message == (
            "The variables of rank 1 could not be saved, so nothing was ended or lost (rank "
            f"1: {why})."
        )
        assert caught.value.hint.startswith(f"{hint}\n%jaxcluster restart --clean")


# --------------------------------------------------------------------------- files elsewhere


class Places:
    """Files of ranks on hosts. Those of ``lost`` ranks can't be brought."""

    def __init__(self, lost: Mapping[int, str] = MappingProxyType({})) -> None:
        self.lost = lost

    def bring(self, rank: int, report: Any) -> str:
        if why := self.lost.get(rank):
            raise LaunchError(why)
        return report.folder

    def donor_for(self, rank: int, donor: int, reports: Any) -> tuple[int, str]:
        return donor, f"from {donor}"


def test_what_was_on_a_host_that_is_lost_too_is_named() -> None:
    asked: dict[int, Take] = {}

    def answer(rank: int, body: Any) -> Any:
        if isinstance(body, RestoreBind):
            return RestoreBound({}, [])
        asked[rank] = body.take
        return RestoreLooked(body.take.names, {}, {})

    random = dict.fromkeys([*restart.RANDOM, "seeded"])
    told = {0: report(digests={"a": "=1", "mine": "=0"}, random=random, folder="own 0")}
    told[1] = report(digests={"a": "=1", "mine": "=7", "only": "=2"}, random=random)
    places: Any = Places({1: "Host h0 is lost: its agent was killed."})
    found = restart.restore(NewWorld(answer), Kept(places, told, False, {}, 2), lambda: None)  # type: ignore[arg-type]
    assert asked[0] == Take("own 0", ["a", "mine"])
    assert replace(asked[1], skip=[]) == Take("from 0", ["a"], from_rank=0, texts={"mine": "7"})
    assert (found.kept, set(found.lost)) == (("a", "mine"), {"only"})
    assert found.gone == "rank 1: Host h0 is lost: its agent was killed"


def test_a_damaged_file_is_seen_before_any_rank_binds_what_it_has_read() -> None:
    asked: list[tuple[int, str]] = []

    def answer(rank: int, body: Any) -> Any:
        asked.append((rank, body.op))
        if isinstance(body, RestoreLook):
            if body.take.path == "own 1":
                return wire.Failure("Unreadable", "own 1 is damaged")
            return RestoreLooked(body.take.names, {}, {})
        return RestoreBound({}, []) if isinstance(body, RestoreBind) else None

    reports = {r: report(digests={"a": "equal"}, folder=f"own {r}") for r in (0, 1)}
    kept = Kept(Places(), reports, False, {}, 2)  # type: ignore[arg-type]
    found = restart.restore(NewWorld(answer), kept, check)  # type: ignore[arg-type]
    assert (found.gone, found.kept + tuple(found.lost)) == ("rank 1: own 1 is damaged", ("a",))
    ops = [op for _, op in asked]
    looks, drops, binds = ["restore_look"] * 2, ["restore_drop"] * 2, ["restore_bind"] * 2
    assert ops == [*looks, *drops, *looks, *binds]
