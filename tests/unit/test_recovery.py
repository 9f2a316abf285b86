"""How long a replay is waited for, and what follows from what ranks answer, without any rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from jaxcluster import lockstep, wire
from jaxcluster.cluster.replay import Replay, count_anew
from jaxcluster.errors import NoCluster
from jaxcluster.lockstep import replaying
from jaxcluster.lockstep.actions import Ask, CountAnew, LookAround
from jaxcluster.lockstep.events import Looked
from jaxcluster.lockstep.facts import Facts
from jaxcluster.lockstep.replaying import Ran, Refused, Replaying, RunSkipped, Verified
from jaxcluster.wire.link import Event


@dataclass
class Ranks:
    """Answers on a clock of its own, and takes down what is asked for.

    Attributes:
      each: how many looks a rank takes to run one program with zeros; 0: it never does.
      has: how many launches each rank has made.
    """

    has: list[int] = field(default_factory=lambda: [8, 0])
    each: int = 0
    states: dict[int, str] = field(default_factory=dict)
    background: list[str] = field(default_factory=list)  # on rank 1
    fingerprint: int = 7
    other_until: float = 0.0  # rank 1 runs another cell so long
    late_until: float = 0.0  # rank 0 says nothing so long
    verified: str = ""
    courses: dict[int, str] | None = None
    facts: Facts = Facts(0.0, (0, 1))  # noqa: RUF009
    look_s: float = 0.0  # that each look takes
    looks: int = 0
    done: list[replaying.Action] = field(default_factory=list)
    collected: list[Ran | Refused] = field(default_factory=list)

    def carry(self, steps: replaying.Steps[Any]) -> Any:
        return lockstep.carry(steps, self.answer)

    def answer(self, action: replaying.Action) -> Any:
        self.done.append(action)
        match action:
            case LookAround():
                return self.facts
            case Ask():
                return self.look(action)
            case replaying.Collect():
                found, self.collected = self.collected, []
                return found
            case replaying.Pause(seconds):
                self.facts = Facts(self.facts.now + max(seconds, 0.05), (0, 1), self.facts.dead)
            case replaying.Verify():
                counts = {rank: self.report(rank).state.launches for rank in (0, 1)}
                return Verified(self.verified, counts)
            case replaying.AskCourses(wanted):
                of = self.courses
                return of and {r: dict.fromkeys(prints, of[r]) for r, prints in wanted.items()}
            case CountAnew():
                return True
        return None

    def look(self, ask: Ask) -> Looked:
        self.looks += 1
        self.facts = replace(self.facts, now=self.facts.now + self.look_s)
        asked = any(isinstance(one, RunSkipped) for one in self.done)
        if asked and self.each and self.has[1] < self.has[0] and self.looks % self.each == 0:
            self.has[1] += 1
            if self.has[1] == self.has[0]:
                self.collected.append(Ran(1, self.has[0]))
        here = (0, 1) if self.facts.now >= self.late_until else (1,)
        reports = {rank: self.report(rank) for rank in here}
        return Looked(self.facts.now, ask, reports, self.facts)

    def report(self, rank: int) -> wire.RankReport:
        own = 7 if not rank else self.fingerprint
        made = [wire.Launch(n, "0,1", "f", own, 3, 1, "", 5) for n in range(self.has[rank])]
        value = 0
        for one in made:
            value = wire.next_hash(value, one.fingerprint)
        counts = {"0,1": [len(made), value]}
        state, seq = self.states.get(rank, "idle"), 5
        if rank and self.facts.now < self.other_until:
            state, seq = "running", 6
        told = wire.RankState(
            rank, 9, "here", state, seq=seq if state != "idle" else 0, ended=5, taken=5,
            launches=counts, probes=self.looks, background=self.background if rank else [],
        )  # fmt: skip
        return wire.RankReport(told, [], made)


def test_a_replay_that_makes_progress_is_waited_for() -> None:
    ranks, replay = Ranks(each=10), Replaying()
    assert ranks.carry(replay.settle(timeout_s=2.0))
    assert replay.ran == {1: 8}
    assert sum(isinstance(one, RunSkipped) for one in ranks.done) == 1
    assert ranks.facts.now > 2.0


@pytest.mark.parametrize("look_s", [3.0, 7.0])
def test_a_replay_is_not_given_up_since_looks_take_long(look_s: float) -> None:
    """As on a busy machine: the time was over before a look had shown it done."""
    ranks, replay = Ranks([8, 7], each=2, look_s=look_s), Replaying()
    assert ranks.carry(replay.settle())
    assert replay.ran == {1: 8}


def test_a_replay_that_ends_nothing_is_given_up_where_looks_take_long() -> None:
    ranks, replay = Ranks(look_s=3.0), Replaying()
    assert not ranks.carry(replay.settle())
    assert replay.stuck == "they were not in lockstep after 8 s"
    assert ranks.facts.now < 8 * 3.0


def test_a_replay_that_makes_none_is_given_up() -> None:
    ranks, replay = Ranks(), Replaying()
    assert not ranks.carry(replay.settle(timeout_s=1.0))
    assert replay.stuck == "they were not in lockstep after 1 s"


def test_a_rank_that_is_about_to_get_a_cell_of_another_notebook_is_not_replayed() -> None:
    """Those that have got it may have launched in it already."""
    ranks, replay = Ranks(), Replaying()
    for _ in range(int(replaying.IN_FLIGHT_S / 0.1)):
        ranks.carry(replay.step(handed_out={0: 6, 1: 6}))
        ranks.answer(replaying.Pause(0.1))
        assert not any(isinstance(one, RunSkipped) for one in ranks.done)
    for _ in range(2):  # it never came
        ranks.answer(replaying.Pause(0.2))
        ranks.carry(replay.step(handed_out={0: 6, 1: 6}))
    assert sum(isinstance(one, RunSkipped) for one in ranks.done) == 1


def test_a_rank_that_does_not_leave_its_cell_is_not_waited_for_long() -> None:
    ranks, replay = Ranks([8, 8], states={0: "running"}), Replaying(seq=5)
    assert not ranks.carry(replay.settle(timeout_s=60.0))
    assert replay.stuck == "rank 0 did not leave the cell"
    assert ranks.facts.now < 2 * replaying.STALLED_S


def test_nothing_is_replayed_for_the_dead() -> None:
    ranks, replay = Ranks(facts=Facts(0.0, (0, 1), {1: wire.Death("gone")})), Replaying()
    assert not ranks.carry(replay.settle())
    assert replay.stuck == "rank 1 died"


def test_ranks_in_lockstep_are_believed_only_when_a_sum_comes_out_right() -> None:
    ranks, replay = Ranks([8, 8]), Replaying()
    assert ranks.carry(replay.bring_back()) == "replayed"
    assert replaying.Verify() in ranks.done
    wrong = Replaying()
    assert ranks.carry(wrong.bring_back()) == "replayed"
    ranks.verified = "a sum over all devices is wrong on rank 1"
    assert ranks.carry(wrong.bring_back()) == ""
    assert wrong.stuck == ranks.verified


def test_what_a_thread_may_be_about_to_launch_is_waited_for_a_moment_and_never_replayed() -> None:
    ranks, replay = Ranks([8, 7], background=["thread 'pool'"]), Replaying()
    assert not ranks.carry(replay.settle())
    assert replay.is_under_way and not replay.stuck
    assert ranks.facts.now < replaying.SETTLE_S
    assert not any(isinstance(one, RunSkipped) for one in ranks.done)


def test_no_check_is_made_beside_threads_that_launch_unless_zeros_were_run() -> None:
    ranks = Ranks([8, 8], background=["thread 'pool'"])
    assert ranks.carry(Replaying().bring_back()) == "replayed"
    assert replaying.Verify() not in ranks.done
    replay = Replaying()
    replay.ran = {1: 1}
    assert ranks.carry(replay.bring_back()) == "replayed"
    assert replaying.Verify() in ranks.done


def test_ranks_that_run_other_cells_are_waited_for_where_it_is_patient() -> None:
    for is_patient in (False, True):
        ranks, replay = Ranks([8, 8], other_until=5.0), Replaying(seq=5)
        replay.is_patient = is_patient
        tries = 1
        while not (is_back := ranks.carry(replay.settle(timeout_s=3.0))) and not replay.stuck:
            assert replay.waits_for_others  # whoever has the turn lets others take it meanwhile
            tries += 1
        assert (is_back, tries) == ((True, 3) if is_patient else (False, 1))


def test_no_rank_replays_before_all_have_said_what_they_launched() -> None:
    """What a late one has made may come first."""
    ranks, replay = Ranks(late_until=2.0), Replaying()
    while not any(isinstance(one, RunSkipped) for one in ranks.done):
        ranks.carry(replay.step())
        ranks.answer(replaying.Pause(0.1))
    assert 2.0 <= ranks.facts.now < replaying.SILENT_S
    late, replay = Ranks(late_until=60.0), Replaying()
    for _ in range(60):  # it may never say anything
        late.carry(replay.step())
        late.answer(replaying.Pause(0.1))
    assert replay._all_spoken and late.facts.now < 60.0


def test_a_cell_that_waits_at_its_gate_launches_its_own_programs_itself() -> None:
    launches = [wire.Launch(n, "0,1", "f", 7, 3, 1, "", 4 + n) for n in range(3)]
    at_gate = idle(1, gate=[5, 0, 1])
    held = [Replaying(seq)._held(1, {1: at_gate}, launches) for seq in (None, 5, 4)]
    assert [len(each) for each in held] == [2, 2, 2]
    assert Replaying(5)._held(1, {1: idle(1)}, launches) == []


@pytest.mark.parametrize(("ended", "number"), [(5, 1), (6, 0)])
def test_what_a_thread_may_have_launched_for_a_cell_behind_the_gate_is_not_replayed(
    ended: int, number: int
) -> None:
    reports = {0: idle(0, ended=ended), 1: idle(1, gate=[5, 0, 1])}
    held = Replaying(5)._held(1, reports, [wire.Launch(0, "0,1", "f", 7, 3, 1, "", 0)])
    assert len(held) == number


def idle(rank: int, gate: Sequence[int] = (), ended: int = 5) -> wire.RankReport:
    state = wire.RankState(rank, 9, "here", "idle", gate=[*gate], ended=ended)
    return wire.RankReport(state, [], [])


def test_a_rank_that_raises_without_a_word_is_a_reason_all_the_same() -> None:
    ranks, replay = Ranks(), Replaying()
    ranks.collected = [Refused(1, "AssertionError", "")]
    assert not ranks.carry(replay.settle())
    assert replay.stuck == "rank 1 raised AssertionError"


def test_ranks_that_do_not_pass_the_check_do_not_count_from_zero() -> None:
    same = {0: "all-reduce", 1: "all-reduce"}
    ranks = Ranks([8, 8], fingerprint=9, courses=same, verified="a sum is wrong")
    assert ranks.carry(Replaying().bring_back()) == ""
    assert not any(isinstance(one, CountAnew) for one in ranks.done)


@pytest.mark.parametrize(
    ("courses", "how"),
    [({0: "all-reduce", 1: "all-reduce"}, "completed"), ({0: "all-reduce", 1: "all-gather"}, ""),
     ({0: "", 1: ""}, ""), (None, "")],
)  # fmt: skip
def test_different_programs_may_all_have_ended(courses: dict[int, str] | None, how: str) -> None:
    ranks, replay = Ranks([8, 8], fingerprint=9, courses=courses), Replaying()
    assert ranks.carry(replay.bring_back()) == how
    assert (CountAnew(1, {"0,1": 8}) in ranks.done) == bool(how)
    assert how or replay.stuck == "they launched different programs"


# --------------------------------------------------------------------------- what ranks answer


class Asked:
    """Takes down what ranks are asked; ``export`` is answered by those that have the program."""

    ranks = (0, 1, 2)

    def __init__(self, *has: int) -> None:
        self.has = has
        self.exports = 0
        self.replays: list[tuple[int, list[bytes]]] = []

    def request(self, rank: int, request: Any, *, buffers: Any, sink: Any) -> None:
        assert request.op == "replay"
        self.replays.append((rank, list(buffers)))

    def gather(self, ranks: Any, request: Any, **rest: Any) -> dict[int, Event[Any]]:
        assert request.op == "export"
        self.exports += 1
        return {r: Event(r, "reply", "", None, [f"of {r}".encode()]) for r in self.has}


LAUNCH = wire.Launch(4, "0,1,2", "f", 7, 3, 1, "")


def asked_of(link: Asked, *ranks: int) -> Replay:
    """A replay that has asked these ranks to run the launch."""
    replay = Replay(link)  # type: ignore[arg-type]
    for rank in ranks:
        replay._do(replay.core._ask(RunSkipped(rank, (LAUNCH.fingerprint,), {}, {})))
    return replay


def refused(replay: Replay, rank: int, ename: str) -> None:
    replay._sink.put(Event(rank, "error", "", wire.Failure(ename, f"{ename} here")))
    lockstep.carry(replay.core._collect(), replay._do)


def test_a_rank_that_has_launched_something_meanwhile_is_looked_at_again() -> None:
    """Another notebook's cell may have released it: that is no reason for new processes."""
    link = Asked()
    replay = asked_of(link, 1)
    refused(replay, 1, "MovedOn")
    assert not replay.core.stuck and not replay.core._asked and not replay.core.ran
    refused(asked_of(link, 1), 1, "MovedOn")
    other = asked_of(link, 1)
    refused(other, 1, "ReplayStuck")
    assert other.core.stuck == "ReplayStuck here"


def test_all_ranks_get_a_program_as_it_was_exported_once() -> None:
    """A program that came as bytes is not the same when it is exported once more."""
    link = Asked(0)
    replay = asked_of(link, 1, 2)
    refused(replay, 1, "UnknownProgram")
    link.has = (1, 0)  # the first rank has it now, from bytes
    refused(replay, 2, "UnknownProgram")
    assert link.exports == 1
    assert link.replays[2:] == [(1, [b"of 0"]), (2, [b"of 0"])]
    refused(replay, 2, "UnknownProgram")  # it had it, and does not know it
    assert replay.core.stuck == "UnknownProgram here"


def test_a_rank_that_has_nothing_to_hand_out_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Asked(0, 1)
    replay = asked_of(link, 2)
    answers = link.gather
    nothing: Event[Any] = Event(0, "reply", "", None, [])
    monkeypatch.setattr(link, "gather", lambda *one, **more: answers(*one, **more) | {0: nothing})
    refused(replay, 2, "UnknownProgram")
    assert link.replays[1:] == [(2, [b"of 1"])]


@pytest.mark.parametrize(
    ("ops", "all_do"), [("reply reply", True), ("reply died", False), ("reply error", False)]
)
def test_ranks_count_from_zero_where_all_of_them_say_so(ops: str, all_do: bool) -> None:
    class Told:
        ranks = (0, 1)

        def gather(self, *asked: Any, **rest: Any) -> dict[int, Event[Any]]:
            return {rank: Event(rank, op, "", None) for rank, op in enumerate(ops.split())}

    assert count_anew(Told(), CountAnew(3)) is all_do  # type: ignore[arg-type]


def test_ranks_that_are_ended_under_a_replay_are_not_waited_for() -> None:
    """By whoever: a restart waits for the turn as well, and the one behind it finds them gone."""

    class Gone:
        ranks = (0, 1)
        dead: dict[int, wire.Death] = dict.fromkeys((0, 1), wire.Death("the cluster was restarted"))

        def gather(self, *asked: Any, **rest: Any) -> dict[int, Event[Any]]:
            return {rank: Event(rank, "died", "", self.dead[rank]) for rank in self.ranks}

    class Turns:
        def quiet(self) -> Any:
            raise NoCluster("It is gone.")

    replay = Replay(Gone(), 7)  # type: ignore[arg-type]
    assert replay.bring_back(Turns()) == ""  # type: ignore[arg-type]
    assert replay.core.stuck == "ranks 0, 1 died"


def test_a_rank_is_idle_once_it_has_taken_the_last_cell_that_was_handed_out() -> None:
    asked = Replaying(9)
    asked._handed_out = {0: 5}
    for taken, idle in ((4, False), (5, True)):
        state = wire.RankState(0, 1, "here", "idle", taken=taken)
        assert asked._is_idle(state) is idle


@pytest.mark.parametrize(("seq", "even"), [(9, False), (10, True)])
def test_a_rank_in_the_cell_itself_may_yet_launch_what_others_lack(seq: int, even: bool) -> None:
    """And one that is in a later cell not: the cell behind will make it on the others."""
    waits = wire.RankState(0, 1, "here", "idle", gate=[9, 0, 1])
    looked = {
        0: wire.RankReport(waits, [], []),
        1: wire.RankReport(wire.RankState(1, 2, "here", "running", seq=seq), [], []),
    }
    lacks = {0: [replace(LAUNCH, cell_seq=10)]}
    assert Replaying(9)._is_even(looked, looked, lacks) is even
