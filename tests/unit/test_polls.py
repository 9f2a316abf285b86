"""What the looks at the ranks during a cell find, with made-up reports and clocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxcluster import wire
from jaxcluster.lockstep.actions import AddPending, CountAnew, DropPending, Found, Notice
from jaxcluster.lockstep.polls import CHECKED_S, FOREIGN_S, TIE_S, Facts, Polls
from jaxcluster.model.health import CellWatch, StopPressed
from jaxcluster.model.outputs import CellRecord
from jaxcluster.wire.forks import RESTARTED

SET = "0,1"
SEQ = 7
ALL = Facts(100.0, ranks=(0, 1))


def launch(at: int, cell: int = SEQ, fingerprint: int = 1, name: str = "jit(f)") -> wire.Launch:
    return wire.Launch(at, SET, name, fingerprint, 3, 1, cell_seq=cell)


def report(
    rank: int, *launches: wire.Launch, state: str = "idle", probes: int = 1, **more: object
) -> wire.RankReport:
    value = 0
    for one in launches:
        value = wire.next_hash(value, one.fingerprint)
    counts = {SET: [len(launches), value]} if launches else {}
    told = wire.RankState(
        rank, 10 + rank, "here", state, ended=SEQ, taken=SEQ, launches=counts, probes=probes
    )
    return wire.RankReport(replace(told, **more), [], list(launches))


def polls(seq: int = SEQ) -> Polls:
    record = CellRecord(seq, 3, "y = f(x)", [0, 1])
    return Polls(record, CellWatch(record.ranks, ALL.now))


def one_lacks(probes: int = 1, **more: object) -> dict[int, wire.RankReport]:
    """Rank 1 has left out what rank 0 waits in."""
    waits = report(0, launch(0), state="running", seq=SEQ, ended=SEQ - 1)
    return {0: waits, 1: report(1, probes=probes, **more)}


def test_a_missing_launch_is_certain_at_the_second_look_alone() -> None:
    looked = polls()
    assert looked.find(one_lacks(), ALL) == []
    assert looked.report is None and looked.suspicion is not None
    assert looked.suspicion.has("moment")
    found = looked.find(one_lacks(probes=2), ALL)
    assert found == [Found(looked.report)] and looked.report is not None
    assert (looked.report.kind, looked.report.culprits) == ("missing", (1,))
    assert set(looked.evidence) == {0, 1}


def test_ranks_of_which_some_count_from_zero_are_not_compared() -> None:
    """The notebook that had them do so may have died over it: then this one does."""
    half = {0: report(0, restarts=1), 1: report(1, launch(0), launch(1))}
    looked = polls()
    assert looked.find(half, ALL) == looked.find(half, replace(ALL, now=ALL.now + 5)) == []
    late = replace(ALL, now=ALL.now + FOREIGN_S + 1)
    assert looked.find(half, late) == [CountAnew(1)]
    assert looked.find({0: report(0, restarts=1), 1: report(1, restarts=1)}, late) == []
    assert looked.find(half, late) == [], "that is another time"
    assert looked.report is None


def test_ranks_that_a_restart_has_ended_are_not_blamed() -> None:
    """One has died, and new processes have come while another cell is looked at."""
    looked, dead = polls(), {0: wire.Death("killed by SIGKILL"), 1: wire.Death(RESTARTED)}
    for rank, made in {0: {SET: [1, 7]}, 1: {}}.items():
        looked._record.records[rank].reply = wire.CellReply(rank, SEQ, "ok", 0.1, launches=made)
    looked.find({}, replace(ALL, dead=dead))
    assert looked.report is None and looked.suspicion is None


@pytest.mark.parametrize("place", ["3:2:14", "", None])
def test_a_stop_that_the_cell_has_caught_is_named_and_no_loop(place: str | None) -> None:
    """It comes to each rank at another moment, so they are in different rounds."""
    looked = polls()
    looked._record.records[1].reply = wire.CellReply(1, SEQ, "ok", 0.1, stopped_at=place)
    looked.find(one_lacks(), ALL)
    looked.find(one_lacks(probes=2), ALL)
    assert looked.report is not None and looked.report.culprits == (1,)
    has_caught = place is not None
    assert looked.report.title.startswith("Stop caught on rank 1") is has_caught
    assert looked.report.lines[0].startswith("The cell has caught a stop on rank 1") is has_caught
    assert any("Rank 1 finished the cell without" in line for line in looked.report.lines)


def test_a_caught_stop_makes_no_rank_launch_another_program() -> None:
    looked = polls()
    looked._record.records[1].reply = wire.CellReply(1, SEQ, "ok", 0.1, stopped_at="3:2:14")
    for probes in (1, 2):
        others = {r: report(r, launch(0, fingerprint=1 + r), probes=probes) for r in (0, 1)}
        looked.find(others, ALL)
    assert looked.report is not None and looked.report.kind == "mismatch"
    assert not looked.report.title.startswith("Stop caught")


def test_the_first_finding_stays() -> None:
    looked = polls()
    looked.find(one_lacks(), ALL)
    looked.find(one_lacks(probes=2), ALL)
    first = looked.report
    assert looked.find(one_lacks(probes=3), ALL) == []
    assert looked.report is first


def test_what_an_interrupt_made_a_rank_leave_out_is_no_finding() -> None:
    looked = polls()
    looked._watch.feed(StopPressed(), ALL.now)
    looked.find(one_lacks(), ALL)
    assert looked.find(one_lacks(probes=2), ALL) == []
    assert looked.report is None


def test_reports_of_before_and_after_a_new_count_are_not_compared() -> None:
    looked = polls()
    looked.find(one_lacks(), ALL)
    assert looked.find(one_lacks(probes=2, restarts=1), ALL) == []
    assert looked.report is None


def test_a_cell_that_was_sent_to_a_rank_may_bring_what_it_lacks() -> None:
    looked = polls()
    later = replace(ALL, sent={1: SEQ + 1})
    looked.find(one_lacks(), later)
    assert looked.find(one_lacks(probes=2), later) == []
    assert looked.suspicion is not None and looked.suspicion.has("cell")


def test_another_cells_finding_is_left_to_its_notebook_for_a_while() -> None:
    made = {0: report(0, launch(0, cell=5)), 1: report(1, launch(0, cell=5, fingerprint=2))}
    looked = polls()
    assert looked.find(made, ALL) == []
    assert looked.foreign_since == ALL.now
    assert looked.find(made, replace(ALL, now=ALL.now + FOREIGN_S)) == []
    found = looked.find(made, replace(ALL, now=ALL.now + FOREIGN_S + 0.1))
    assert found == [Found(looked.report)] and looked.report is not None


def test_no_line_of_this_cell_is_shown_for_another_notebooks_of_the_same_number() -> None:
    """Each kernel counts its own cells."""
    looked = polls()
    looked._record.source = "if rank == 0:\n    step(x)"
    made = [replace(launch(0, cell=5), cell=looked._record.execution_count, line=2)]
    waits = replace(report(0, *made), state=report(0, *made).state)
    reports = {0: waits, 1: report(1, probes=1)}
    late = replace(ALL, now=ALL.now + FOREIGN_S + 0.1)
    looked.find(reports, ALL)
    looked.find({0: waits, 1: report(1, probes=2)}, ALL)
    looked.find({0: waits, 1: report(1, probes=3)}, late)
    assert looked.report is not None and looked.report.cell_seq == 5
    assert "step" not in str(looked.report) and "if rank" not in str(looked.report)


def later_one_lacks(probes: int = 1, is_waiting: bool = True) -> dict[int, wire.RankReport]:
    """Rank 1 has left out what rank 0 waits in, in a later cell; rank 2 is still in this one."""
    waits = report(0, launch(0, SEQ + 1), state="running", seq=SEQ + 1)
    ended = {"ended": SEQ + 1, "taken": SEQ + 1}
    other = replace(launch(0), processes="0,2")
    own = report(2, state="running", seq=SEQ, ended=SEQ - 1)
    own = replace(own, announced=other if is_waiting else None)
    return {0: waits, 1: report(1, probes=probes, **ended), 2: own}


VALUE = ["/site/jax/_src/array.py", 623, "_value", "self._copy()", None, True]


def test_a_rank_that_waits_in_its_launch_is_held_up_as_one_that_announces_it() -> None:
    looked = polls()
    for stack, waits in ([], False), ([VALUE], True):
        own = report(0, launch(0), state="running", seq=SEQ)
        reports = {0: replace(own, stack=stack), 1: replace(own, announced=launch(1))}
        assert looked._waits(reports) is waits


def test_a_later_cells_finding_is_taken_up_where_it_holds_this_one_up() -> None:
    facts = replace(ALL, ranks=(0, 1, 2), sent={0: SEQ + 1, 1: SEQ + 1})
    for is_waiting, own, taken_up in (
        (True, (), True),
        (False, (), False),  # this cell's rank may yet come to an end by itself
        (True, (SEQ + 1,), False),  # the later cell is told
    ):
        record = CellRecord(SEQ, 3, "y = f(x)", [2])
        looked = Polls(record, CellWatch(record.ranks, ALL.now))
        for number, after_s in enumerate((0.0, 1.0, FOREIGN_S - 1.0, FOREIGN_S + 2.0)):
            assert looked.report is None
            now = replace(facts, now=ALL.now + after_s, own=frozenset(own))
            looked.find(later_one_lacks(number + 1, is_waiting), now)
        assert (looked.report is not None) is taken_up


def test_a_circle_of_another_notebook_is_known_once_a_rank_in_it_was_interrupted() -> None:
    """In strict mode it announces no more what it waited for; the other one still compiles."""
    cell, source = SEQ - 1, wire.compiling_fingerprint(5)
    waits = replace(launch(0, cell, source), processes="0,1,2")
    left = launch(0, cell)
    compiles = report(0, state="running", seq=cell, ended=cell - 1)
    looked = polls()
    for probes in range(1, int(FOREIGN_S) + 4):
        reports = {
            0: replace(compiles, announced=waits),
            1: replace(report(1, ended=cell, probes=probes), given_up=[left]),
            2: report(2, ended=cell, probes=probes),
        }
        looked.find(reports, replace(ALL, now=ALL.now + probes))
    assert looked.report is not None and looked.report.kind == "circle"
    assert (looked.report.culprits, looked.report.cell_seq) == ((0, 1), cell)


@pytest.mark.parametrize("kind", ["missing", "mismatch"])
def test_a_circle_in_which_ranks_were_interrupted_hides_nothing_else(kind: str) -> None:
    """Ranks 0 and 1 waited so. Rank 3 lacks what rank 2 has launched, or differs from rank 1."""
    cell, processes = SEQ - 1, "2,3" if kind == "missing" else "1,3"
    one, two = (replace(launch(0, cell, each), processes=processes) for each in (1, 2))
    done = {2: [one]} if kind == "missing" else {1: [one], 3: [two]}
    given_up = {0: replace(one, processes="0,1,2"), 1: replace(one, processes="0,1")}
    looked = polls()
    for probes in range(1, int(FOREIGN_S) + 4):
        reports = {}
        for rank in range(4):
            own = report(rank, *done.get(rank, []), ended=cell, probes=probes)
            counts = dict(zip([processes], own.state.launches.values(), strict=False))
            left = [given_up[rank]] if rank in given_up else []
            state = replace(own.state, launches=counts)
            reports[rank] = replace(own, state=state, given_up=left)
        looked.find(reports, replace(ALL, now=ALL.now + probes))
    assert looked.report is not None
    assert (looked.report.kind, looked.report.cell_seq) == (kind, cell)


def test_who_brings_the_ranks_back_gets_longer_for_its_check() -> None:
    made = {
        0: report(0, launch(0, cell=wire.OURS)),
        1: report(1, launch(0, cell=wire.OURS, fingerprint=2)),
    }
    looked = polls()
    looked.find(made, ALL)
    assert looked.find(made, replace(ALL, now=ALL.now + FOREIGN_S + 1)) == []
    assert looked.find(made, replace(ALL, now=ALL.now + CHECKED_S + 1)) != []


def test_what_a_thread_may_yet_launch_is_excused_at_the_second_look() -> None:
    thread = {"background": ["thread 'pool'"]}

    def look(probes: int) -> dict[int, wire.RankReport]:
        return {0: report(0, launch(0), probes=probes), 1: report(1, probes=probes, **thread)}

    looked = polls()
    assert looked.excuse(look(1), ALL) is None
    excuse, notice = looked.excuse(look(2), ALL) or ()
    assert isinstance(excuse, AddPending) and [one.rank for one in excuse.found] == [1]
    assert isinstance(notice, Notice) and "pool" in notice.text
    assert looked.excuse(look(3), replace(ALL, pending=excuse.found)) == []


def test_an_excuse_is_forgotten_once_the_launch_has_come() -> None:
    looked = polls()
    lacks = {0: report(0, launch(0)), 1: report(1, background=["thread 'pool'"])}
    looked.excuse(lacks, ALL)
    again = {r: replace(one, state=replace(one.state, probes=2)) for r, one in lacks.items()}
    (excuse, _) = looked.excuse(again, ALL) or ()
    assert isinstance(excuse, AddPending)
    came = {0: report(0, launch(0)), 1: report(1, launch(0, cell=0))}
    assert looked.find(came, replace(ALL, pending=excuse.found)) == [DropPending(excuse.found)]


def test_gates_are_opened_where_their_notebook_is_gone() -> None:
    waits = {r: report(r, gate=[SEQ - 1, 0, 1]) for r in (0, 1)}
    looked = polls()
    late = replace(ALL, now=ALL.now + FOREIGN_S)
    assert looked.stuck_gates(waits, ALL) == set()
    assert looked.stuck_gates(waits, late) == {SEQ - 1}


def test_a_rank_that_is_late_with_its_answers_now_and_then_keeps_no_gate_shut() -> None:
    waits = {r: report(r, gate=[SEQ - 1, 0, 1]) for r in (0, 1)}
    looked = polls()
    assert looked.stuck_gates(waits, ALL) == set()
    late = replace(ALL, now=ALL.now + FOREIGN_S)
    assert looked.stuck_gates({0: waits[0]}, late) == set(), "what rank 1 does is not known"
    assert looked.stuck_gates(waits, late) == {SEQ - 1}
    assert looked.stuck_gates({}, late) == set()


def test_gates_of_this_notebooks_own_cells_are_left_alone() -> None:
    waits = {r: report(r, gate=[SEQ - 1, 0, 1]) for r in (0, 1)}
    looked = polls()
    own = replace(ALL, own=frozenset({SEQ - 1}))
    assert looked.stuck_gates(waits, own) == set()
    assert looked.stuck_gates(waits, replace(own, now=ALL.now + FOREIGN_S)) == set()


def test_a_gate_is_opened_though_a_rank_that_does_not_wait_at_it_is_further() -> None:
    waits = {r: report(r, gate=[SEQ - 1, 0, 1]) for r in (0, 1)}
    waits[2] = report(2, launch(0), state="running", seq=SEQ)
    looked = polls()
    late = replace(ALL, now=ALL.now + FOREIGN_S)
    assert looked.stuck_gates(waits, ALL) == set()
    assert looked.stuck_gates(waits, late) == {SEQ - 1}
    waits[1] = report(1, launch(0), gate=[SEQ - 1, 0, 1])
    assert looked.stuck_gates(waits, late) == set()


def test_a_gate_is_opened_whose_cell_has_never_come_to_a_rank_that_runs_a_later_one() -> None:
    waits = {r: report(r, gate=[SEQ - 1, 0, 1, 2]) for r in (0, 1)}
    waits[2] = report(2, launch(0), state="running", seq=SEQ - 1, ended=SEQ - 2)
    looked = polls()
    late = replace(ALL, now=ALL.now + FOREIGN_S)
    assert looked.stuck_gates(waits, ALL) == set()
    assert looked.stuck_gates(waits, late) == set()  # it runs there yet
    waits[2] = report(2, launch(0), state="running", seq=SEQ, ended=SEQ - 2)
    assert looked.stuck_gates(waits, late) == set()
    assert looked.stuck_gates(waits, replace(late, now=late.now + FOREIGN_S)) == {SEQ - 1}


def test_of_two_programs_the_late_rank_tells_which_is_wrong_but_not_for_ever() -> None:
    looked = polls()
    made = {0: report(0, state="running", seq=SEQ, ended=SEQ - 1)}
    for rank in (1, 2):
        one = replace(launch(0, fingerprint=rank), processes="0,1,2")
        counts = {"0,1,2": [1, wire.next_hash(0, rank)]}
        made[rank] = report(rank, one, state="running", seq=SEQ, ended=SEQ - 1, launches=counts)
    for later in (0.0, TIE_S - 1):
        assert looked.find(made, replace(ALL, now=ALL.now + later)) == []
    looked.find(made, replace(ALL, now=ALL.now + TIE_S + 1))
    assert looked.report is not None and looked.report.kind == "mismatch"
