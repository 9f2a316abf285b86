"""Findings from recorded journals: who broke the lockstep, and when nobody did."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from jaxcluster import wire
from jaxcluster.model import deadlock, diagnose, explain, findings, hints, lockstep

SUM, MAX, MUL = 11, 22, 33
NAMES = {SUM: "jit(_reduce_sum)", MAX: "jit(_reduce_max)", MUL: "jit(multiply)"}


def fold(fingerprints):
    value = 0
    for fingerprint in fingerprints:
        value = (value * 1000003 + fingerprint) % ((1 << 61) - 1)
    return value


def report(
    rank, programs, *, running=True, line=None, cell=7, lines=None, names=None, processes="0,1,2,3"
):
    """A rank that has launched ``programs`` (fingerprints) from ``lines`` of cell 7."""
    where = lines or [3] * len(programs)
    launches = [
        wire.Launch(seq, processes, NAMES[p], p, cell, at, "float32[16]")
        for seq, (p, at) in enumerate(zip(programs, where, strict=True))
    ]
    state = wire.RankState(
        rank=rank,
        pid=100 + rank,
        hostname="here",
        state="running" if running else "idle",
        seq=5 if running else 0,
        ended=0 if running else 5,
        cell=cell if running else None,
        line=line if running else None,
        launches={processes: [len(programs), fold(programs)]},
        probes=3,
    )
    return wire.RankReport(state, [], launches, names or {})


def a_moment_ago(reports):
    """The same ranks, before their main threads said once more that they are free."""
    return {
        r: replace(rep, state=replace(rep.state, probes=rep.state.probes - 1))
        for r, rep in reports.items()
    }


def look(reports, ended, source="", errors=None, told=None, before=None, expected=None):
    """The certain finding of two looks a moment apart; None where there is only a suspicion."""
    found = suspect(reports, ended, source, errors, told, before, expected)
    return None if isinstance(found, findings.Suspicion) else found


def suspect(reports, ended, source="", errors=None, told=None, before=None, expected=None):
    before = a_moment_ago(reports) if before is None else before
    return diagnose.diagnose(
        reports, ended, source, 7, errors, told, before=before, expected=expected
    )


def test_ranks_in_step_are_no_finding():
    reports = {r: report(r, [SUM, MAX]) for r in range(4)}
    assert look(reports, []) is None


def test_a_rank_that_still_works_is_no_finding_however_far_behind():
    reports = {0: report(0, [SUM] * 9), **{r: report(r, [SUM] * 3) for r in (1, 2, 3)}}
    assert look(reports, ended=[]) is None


def test_a_rank_that_ended_without_a_launch_is_named_with_the_line_and_the_branch():
    source = "# %%spmd\nif jax.process_index() != 1:\n    s = jnp.sum(g)\ny = 2"
    reports = {r: report(r, [MUL, SUM], line=3, lines=[2, 3]) for r in (0, 2, 3)}
    reports[1] = report(1, [MUL], running=False, lines=[2])
    found = look(reports, ended=[1], source=source)
    assert found.kind == "missing"
    assert found.culprits == (1,)
    assert found.others == (0, 2, 3)
    assert found.seq == 1
    assert str(found) == (
        "Line 2 runs jnp.sum only `if jax.process_index() != 1`.\n"
        "Rank 1 finished the cell without launch 2, jit(_reduce_sum) (its last launch: 1, "
        "jit(multiply), cell [7] line 2  float32[16]).\n"
        "Ranks 0, 2, 3 waited in jnp.sum at cell [7] line 3 (launch 2: jit(_reduce_sum))."
    )
    assert found.title == "Branch on line 2"


GLOO = "UNKNOWN: Gloo context initialization failed: DEADLINE_EXCEEDED: GetKeyValue() timed out"


GAVE_UP = wire.ErrorInfo("JaxRuntimeError", GLOO, [], 3, unconnected=True)


def unconnected(rank1, more=None, cell=7):
    """Rank 0 has given up in its first program; a thread lives on rank 1."""
    broken = report(0, [SUM], running=False, line=3)
    name = f"jit(f){wire.BROKEN_OFF} by E"
    entry = replace(broken.launches[0], name=name, fingerprint=MAX, cell=cell)
    state = replace(broken.state, launches={"0,1": [1, MAX]})
    reports = {
        0: replace(broken, launches=[replace(entry, processes="0,1")], state=state),
        1: replace(rank1, state=replace(rank1.state, background=["thread 'loader'"])),
    }
    source = "if r == 0:\n    # alone\n    s = jnp.sum(g)"
    ended = [r for r, each in reports.items() if each.state.state == "idle"]
    return look(reports, ended, source, {0: GAVE_UP, **(more or {})}, before={})


def test_ranks_that_others_waited_for_in_vain_to_connect_are_named_whatever_lives_on_them():
    found = unconnected(report(1, [], running=False, processes="0,1"))
    assert (found.kind, found.culprits, found.others, found.seq) == ("missing", (1,), (0,), 0)
    assert found.is_hopeless and found.concerns(5) and found.concerns(99)
    assert str(found).splitlines()[:3] == [
        "Rank 0 waited for rank 1 in the first program of their devices, and gave up after 30 s.",
        "Line 1 runs jnp.sum only `if r == 0`.",
        "Rank 1 finished the cell without launch 1, jit(f) (it has launched none).",
    ]
    assert "must come to it within 30 s" in found.lines[-1]
    slow = unconnected(report(1, [], line=1, processes="0,1"))
    assert "Rank 1 had not come to launch 1, jit(f) (it has launched none)." in slow.lines
    late = unconnected(report(1, [SUM], line=3, processes="0,1"))
    assert (late.culprits, late.others, late.is_hopeless) == ((1,), (0,), True)
    assert "Rank 0 waited for rank 1 in" in late.lines[0] and "aborted by E" in str(late)
    before = unconnected(report(1, [SUM], line=3, processes="0,1"), cell=4)  # a signal's handler
    assert before.lines[1:-1] == (
        "Rank 0 had launched it before this cell (launch 1: jit(f), cell [4] line 3).",
    )
    both = unconnected(report(1, [SUM], running=False, processes="0,1"), {1: GAVE_UP})
    assert both.lines[0].startswith("Ranks 0, 1 waited for each other in the first program")


def test_a_wait_on_another_line_than_the_launch_names_both():
    source = "if r != 1:\n    s = jnp.sum(g)\n    print(s)"
    reports = {r: report(r, [SUM], line=3, lines=[2]) for r in (0, 2, 3)}
    reports[1] = report(1, [], running=False)
    found = look(reports, ended=[1], source=source)
    assert found.lines[0] == "Line 1 runs jnp.sum only `if r != 1`."
    assert found.lines[-1] == (
        "Ranks 0, 2, 3 waited at cell [7] line 3 for jnp.sum of line 2 "
        "(launch 1: jit(_reduce_sum))."
    )


def test_an_uneven_loop_shows_the_counter_of_each_rank():
    source = "for step in range(n):\n    s = jnp.sum(g)"
    reports = {0: report(0, [SUM] * 3, line=2, lines=[2] * 3, names={"step": "2"})}
    for r in (1, 2, 3):
        reports[r] = report(r, [SUM] * 2, running=False, lines=[2] * 2, names={"step": "1"})
    found = look(reports, ended=[1, 2, 3], source=source)
    assert "step = 2 on rank 0, 1 on ranks 1-3." in found.lines
    assert found.title == "Loop on line 1"
    assert found.lines[0] == "The loop on line 1 ran more often on rank 0 than on ranks 1-3."
    assert "the last batch is the usual cause" in str(found)
    assert any(line.startswith("Ranks 1-3 finished the cell without") for line in found.lines)


def test_a_loop_within_a_branch_is_the_cause_where_the_rank_was_in_it():
    source = "if r < 9:\n    for b in batches:\n        jnp.sum(b)"
    for made, title in (2, "Loop on line 2"), (0, "Branch on line 1"):
        reports = {r: report(r, [SUM] * 3, line=3, lines=[3] * 3) for r in (0, 2, 3)}
        reports[1] = report(1, [SUM] * made, running=False, lines=[3] * made)
        assert look(reports, ended=[1], source=source).title == title


def test_a_loop_whose_turns_may_pass_over_a_line_is_not_said_to_run_less_often():
    source = (
        "for i in range(3):\n    try:\n        v = total(g, read(i))\n"
        "    except OSError:\n        continue"
    )
    reports = {r: report(r, [SUM] * 3, line=3, lines=[3] * 3) for r in (0, 2, 3)}
    reports[1] = report(1, [SUM] * 2, running=False, lines=[3] * 2)
    found = look(reports, ended=[1], source=source)
    assert found.title == "Line 3, in a loop"
    assert found.lines[0] == "Line 3 ran more often on ranks 0, 2, 3 than on rank 1."
    assert "`except` or `continue`" in found.lines[-1]


@pytest.mark.parametrize(
    "source, told",
    [
        (
            "it = iter(data)\nwhile True:\n    try: i = next(it)\n    except StopIteration: break\n"
            "    v = total(g)",
            [
                "The loop on line 2 ran more often on",
                "what ends a loop by `break` must be the same",
            ],
        ),
        (
            "for i in data:\n    if i is None:\n        continue\n    else: pass\n    v = total(g)",
            ["Line 5 ran more often on", "`except` or `continue`"],
        ),
        (
            "x = 1\ntry:\n    y = 2\n    read(r)\n    v = total(g)\nexcept OSError: pass",
            ["Line 5 is in the `try` of line 2, which may have ended in an error on rank 1."],
        ),
    ],
)
def test_it_is_told_how_a_line_may_have_been_passed_over(source, told):
    reports = {r: report(r, [SUM] * 3, line=5, lines=[5] * 3) for r in (0, 2, 3)}
    reports[1] = report(1, [SUM] * 2, running=False, lines=[5] * 2)
    found = str(look(reports, ended=[1], source=source))
    assert all(each in found for each in told), found


def test_of_two_lines_with_one_program_the_one_that_ran_more_often_is_named():
    source = (
        "for i in range(3):\n    try:\n        v = total(g)\n        save(v)\n"
        "    except OSError:\n        v = total(g)"
    )
    reports = {1: report(1, [SUM] * 4, line=3, lines=[3, 3, 6, 3])}
    reports |= {r: report(r, [SUM] * 3, running=False, lines=[3] * 3) for r in (0, 2, 3)}
    found = look(reports, ended=[0, 2, 3], source=source)
    assert found.lines[0] == "Line 6 ran more often on rank 1 than on ranks 0, 2, 3."


@pytest.mark.parametrize(
    "source, call",
    [
        ("if jax.process_index() == 0: print(g.sum())", "g.sum"),
        ("if r: last = time.time(); print(float(jnp.mean(g)))", "jnp.mean"),
        ("if r: print(np.asarray(w).mean(), float(g.sum()))", "g.sum"),
        ("if r: logging.warning('%s', total(g))", "total"),
        ("if r: print(w.max(), g.sum())", "g.sum"),
        ("if r: np.asarray(w)", "np.asarray"),
    ],
)
def test_the_call_is_named_that_may_have_launched(source, call):
    reports = {r: report(r, [SUM], line=1, lines=[1]) for r in (0, 2, 3)}
    reports[1] = report(1, [], running=False)
    found = look(reports, ended=[1], source=source)
    test = source[3 : source.index(":")]
    assert found.lines[0] == f"Line 1 runs {call} only `if {test}`."
    assert found.lines[-1].startswith(f"Ranks 0, 2, 3 waited in {call} at cell [7] line 1")


@pytest.mark.parametrize(
    "name, lines, told",
    [
        ("jit(step)", (2, 2), "Hint: the same call compiled to different programs: do constants"),
        ("jit(<lambda>)", (2, 2), "Hint: another function, or one that has compiled to"),
        ("jit(<lambda>)", (2, 3), "Line 1 runs line 3 only if `r` is false."),
    ],
)
def test_programs_of_one_name_are_one_call_only_where_they_come_from_one_line(name, lines, told):
    source = "for h in functions:\n    h(x)\n" if lines == (2, 2) else "if r:\n    f(x)\nelse: g(x)"
    reports = {r: report(r, [SUM], line=lines[0], lines=[lines[0]]) for r in (0, 2, 3)}
    reports[1] = report(1, [MAX], line=lines[1], lines=[lines[1]])
    reports = {
        r: replace(one, launches=[replace(one.launches[0], name=name)])
        for r, one in reports.items()
    }
    assert told in str(look(reports, ended=[], source=source))


def test_a_launch_in_the_test_of_a_loop_depends_on_that():
    reports = {0: report(0, [SUM], lines=[1], processes="0,1")}
    reports[1] = report(1, [], running=False, processes="0,1")
    source = "while r < 1 and float(total(x)) > 0: pass"
    found = look(reports, ended=[1], source=source)
    assert found.lines[0] == "What line 1 launches depends on `r < 1 and float(total(x)) > 0`."


def test_of_a_loop_on_one_line_the_call_in_its_body_is_named():
    reports = {0: report(0, [SUM, SUM], line=1, lines=[1, 1], processes="0,1")}
    reports[1] = report(1, [SUM], lines=[1], running=False, processes="0,1")
    found = look(reports, ended=[1], source="for k in loader(): cnt += float(total(x * k))")
    assert any(line.startswith("Rank 0 waited in total at cell [7] line 1") for line in found.lines)


def test_a_loop_without_end_is_no_branch():
    source = "while True:\n    jnp.sum(g)"
    reports = {r: report(r, [SUM] * 3, line=2, lines=[2] * 3) for r in (0, 2, 3)}
    reports[1] = report(1, [SUM], running=False, lines=[2])
    found = look(reports, ended=[1], source=source)
    assert found.lines[0].startswith("The loop on line 1 ran more often on ranks 0, 2, 3 than")


def test_a_death_is_the_cause():
    reports = {r: report(r, [SUM], line=1) for r in (0, 2, 3)}
    state = replace(report(1, []).state, state="dead")
    reports[1] = wire.RankReport(state, [], [])
    found = look(reports, ended=[1], source="s = jnp.sum(g)", told=[0, 2, 3])
    assert found.lines[0].startswith("Rank 1 died before launch 1, jit(_reduce_sum)")


def test_a_rank_that_dies_when_it_has_ended_the_cell_has_skipped_the_launch_like_others():
    """A second look tells whether these lack it, too: the death alone is seen at once."""
    reports = {r: report(r, [SUM], line=3) for r in (2, 3)}
    reports |= {r: report(r, [], running=False) for r in (0, 1)}
    state = replace(report(1, []).state, state="dead", hostname="")
    after = {**reports, 1: wire.RankReport(state, [], [])}
    source = "# %%spmd\nif r > 1:\n    s = jnp.sum(g)"
    found = suspect(after, ended=[0, 1], source=source, before=reports)
    assert isinstance(found, findings.Suspicion)
    found = look(after, ended=[0, 1], source=source)
    assert found.lines[1].startswith("Ranks 0, 1 finished the cell without launch 1")


def test_an_error_before_the_launch_is_named():
    reports = {r: report(r, [SUM], line=3) for r in (0, 2, 3)}
    reports[1] = report(1, [], running=False)
    errors = {1: wire.ErrorInfo("ValueError", "bad batch", [], lineno=2)}
    found = look(reports, ended=[1], source="x", errors=errors)
    assert found.title == "ValueError on rank 1"
    assert found.lines[0].startswith("Rank 1 raised ValueError on line 2 before launch 1, ")
    assert found.lines[1].startswith("Ranks 0, 2, 3 waited ")


def test_a_loaders_thread_that_has_failed_explains_a_loop_that_ended_early():
    reports = {r: report(r, [SUM, SUM], line=2) for r in (0, 2, 3)}
    reports[1] = report(1, [SUM], running=False)
    failed = wire.ThreadError("Thread-3 (work)", "ValueError", "bad file", "data.py line 12")
    reports[1] = replace(reports[1], thread_error=failed)
    loop = "for batch in loader:\n    total(batch)\n"
    found = look(reports, ended=[1], source=loop)
    assert found.title == "ValueError in a thread of rank 1"
    told = "Thread 'Thread-3 (work)' of rank 1 ended with ValueError at data.py line 12: bad file"
    assert found.lines[0] == told
    assert not any("last batch" in line for line in found.lines)
    # Where it fails on all ranks alike, it is no cause.
    reports[0] = replace(reports[0], thread_error=failed)
    assert "thread" not in look(reports, ended=[1], source=loop).title


def test_a_rank_that_was_not_told_to_run_the_cell_is_said_so():
    reports = {r: report(r, [SUM], line=3) for r in (0, 2, 3)}
    reports[1] = report(1, [], running=False)
    found = look(reports, ended=[1], source="s = jnp.sum(g)", told=[0, 2, 3])
    assert found.title == "Cell not run on rank 1"
    assert "Rank 1 did not run the cell" in str(found)
    assert "no --ranks" in str(found)


def test_different_programs_at_one_place_are_certain_while_all_still_run():
    source = "if r == 1:\n    jnp.max(g)\nelse:\n    jnp.sum(g)"
    reports = {r: report(r, [MUL, SUM], lines=[1, 4]) for r in (0, 2, 3)}
    reports[1] = report(1, [MUL, MAX], lines=[1, 2])
    found = look(reports, ended=[], source=source)
    assert found.kind == "mismatch"
    assert found.seq == 1
    assert found.culprits == (1,)
    assert "ranks 0, 2, 3: jit(_reduce_sum), cell [7] line 4" in str(found)
    assert "rank 1: jit(_reduce_max), cell [7] line 2" in str(found)
    assert found.title == "Branch on line 1"
    assert "only `if r == 1`" in found.lines[0]


def test_the_same_programs_in_another_order_point_to_iteration_order():
    reports = {r: report(r, [SUM, MAX]) for r in (0, 2, 3)}
    reports[1] = report(1, [MAX, SUM])
    found = look(reports, ended=[0, 1, 2, 3])
    assert "in another order" in str(found)
    assert found.title == "Programs in different orders"


def test_different_shapes_are_named():
    reports = {r: report(r, [SUM]) for r in (0, 1, 2)}
    other = wire.Launch(0, "0,1,2,3", NAMES[SUM], 99, 7, 3, "float32[8]")
    state = report(3, [99 and SUM]).state
    state = wire.RankState(**{**state.__dict__, "launches": {"0,1,2,3": [1, 99]}})
    reports[3] = wire.RankReport(state, [], [other])
    found = look(reports, ended=[])
    assert found.title == "Different shapes"
    assert found.lines[0] == (
        "The ranks launched jit(_reduce_sum) with different shapes, as launch 1: "
        "rank 3: float32[8]; ranks 0-2: float32[16], cell [7] line 3."
    )


def test_another_sharding_is_no_other_shape():
    reports = {r: report(r, [SUM]) for r in (0, 1, 2, 3)}
    for rank, inputs in enumerate(["float32[16@(x,y),3]", *["float32[16@x,3]"] * 3]):
        made = wire.Launch(0, "0,1,2,3", NAMES[SUM], 99 - min(rank, 1), 7, 3, inputs)
        state = reports[rank].state.__dict__ | {"launches": {"0,1,2,3": [1, made.fingerprint]}}
        reports[rank] = wire.RankReport(wire.RankState(**state), [], [made])
    found = look(reports, ended=[])
    assert found.title == "Different shardings"
    assert found.lines[0].startswith("The ranks launched jit(_reduce_sum) with different shardings")
    assert "pad or drop" not in str(found)


def test_another_dtype_is_no_other_shape_and_another_line_is_told():
    reports = {r: report(r, [SUM]) for r in (0, 1, 2)}
    for line, title in ((3, "Different inputs"), (4, "Different inputs")):
        other = wire.Launch(0, "0,1,2,3", NAMES[SUM], 99, 7, line, "int8[16]")
        state = replace(report(3, [SUM]).state, launches={"0,1,2,3": [1, 99]})
        reports[3] = wire.RankReport(state, [], [other])
        found = look(reports, ended=[])
        assert found.title == title
        assert ("  rank 3: jit(_reduce_sum), cell [7] line 4" in str(found)) == (line == 4)


def test_a_mismatch_older_than_the_journals_is_still_found_by_the_hash():
    reports = {r: report(r, [SUM, MUL]) for r in (0, 2, 3)}
    reports[1] = report(1, [MAX, MUL])
    for r, rep in reports.items():
        reports[r] = wire.RankReport(rep.state, [], rep.launches[1:])
    found = look(reports, ended=[0, 1, 2, 3])
    assert found.kind == "mismatch"
    assert found.seq is None


def test_programs_of_a_part_of_the_ranks_concern_that_part_alone():
    reports = {r: report(r, [SUM] * 3, processes="0,1") for r in (0, 1)}
    reports |= {r: report(r, [MAX], processes="2,3") for r in (2, 3)}
    assert look(reports, ended=[0, 1, 2, 3]) is None
    assert lockstep.in_lockstep({r: rep.state.launches for r, rep in reports.items()})


def test_an_announced_launch_is_the_same_as_the_one_that_others_have_made_already():
    reports = {r: report(r, [SUM, MAX]) for r in range(3)}
    behind = report(3, [SUM])
    announced = wire.Launch(1, "0,1,2,3", NAMES[MAX], MAX, 7, 3, "")
    reports[3] = replace(behind, announced=announced)
    assert look(reports, ended=[]) is None


def test_a_launch_that_was_refused_is_told_and_those_who_wait_can_be_released():
    reports = {r: report(r, [SUM, SUM], line=3, lines=[2, 3]) for r in (0, 1, 3)}
    behind = report(2, [SUM], running=False, lines=[2])
    refused = wire.Launch(1, "0,1,2,3", NAMES[SUM], MAX, 7, 3, "float32[20]")
    reports[2] = replace(behind, announced=refused)
    found = look(reports, ended=[2])
    assert (found.kind, found.seq, found.culprits) == ("mismatch", 1, (2,))
    assert found.is_releasable
    assert "Rank 2 has not launched its program: it was refused" in str(found)
    assert "rank 2: float32[20]; ranks 0, 1, 3: float32[16], cell [7] line 3" in str(found)
    # It has run the others' by now.
    reports[2] = replace(report(2, [SUM, SUM], running=False, lines=[2, 3]), announced=refused)
    assert look(reports, ended=[2]) is None


def test_an_announced_launch_of_strict_mode_counts_as_one_that_others_skipped():
    reports = {r: report(r, [MUL], line=3) for r in (0, 2, 3)}
    entry = wire.Launch(1, "0,1,2,3", NAMES[SUM], SUM, 7, 3)
    reports = {
        r: wire.RankReport(rep.state, [], rep.launches, {}, entry) for r, rep in reports.items()
    }
    reports[1] = report(1, [MUL], running=False)
    found = look(reports, ended=[1], source="\n\nx = jnp.sum(g)")
    assert found.kind == "missing"
    assert found.culprits == (1,)


class TestWhoMayLaunch:
    """Rank 1 has not made the others' launch. Whether that is certain depends on what may come."""

    @staticmethod
    def reports(**of_rank_1):
        reports = {r: report(r, [SUM], line=3) for r in (0, 2, 3)}
        skipped = report(1, [], running=False)
        return reports | {1: replace(skipped, state=replace(skipped.state, **of_rank_1))}

    def test_one_look_is_not_enough(self):
        found = suspect(self.reports(), ended=[1], before={})
        assert isinstance(found, findings.Suspicion)
        assert found.has("moment")

    def test_two_looks_that_agree_are(self):
        assert look(self.reports(), ended=[1]).culprits == (1,)

    def test_looks_between_which_it_launched_or_ended_a_cell_do_not_agree(self):
        reports = self.reports()
        for change in ({"launches": {"0,1,2,3": [1, 9]}}, {"ended": 4}, {"state": "running"}):
            before = a_moment_ago(reports)
            before[1] = replace(before[1], state=replace(before[1].state, **change))
            found = suspect(reports, ended=[1], before=before)
            assert found.has("moment"), change

    def test_a_rank_whose_main_thread_is_busy_may_launch(self):
        reports = self.reports()
        found = suspect(reports, ended=[1], before=reports)
        assert found.has("busy")
        assert "its main thread is busy with something else" in explain.tell_suspicion(found, 3)

    def test_a_cell_of_anyone_that_waits_there_may_launch(self):
        assert suspect(self.reports(queued=1), ended=[1]).has("cell")

    @pytest.mark.parametrize(("ended", "is_certain"), [(5, True), (6, False)])
    def test_a_cell_behind_a_gate_may_launch_where_another_ranks_thread_may_be_its(
        self, ended, is_certain
    ):
        """Its launch is of no cell; of none behind the gate, unless a rank has begun one."""
        reports = self.reports(queued=1, gate=[5, 0, 1, 2, 3])
        for rank in (0, 2, 3):
            own = reports[rank]
            made = [replace(launch, cell_seq=0) for launch in own.launches]
            state = replace(own.state, state="idle", seq=0, ended=ended if rank == 2 else 5)
            reports[rank] = replace(own, state=state, launches=made)
        found = suspect(reports, ended=[0, 1, 2, 3])
        if is_certain:
            assert found.culprits == (1,)
        else:
            assert found.reasons[1].message == "has another cell to run first"

    def test_a_cell_of_anyone_that_is_on_its_way_may_launch(self):
        assert suspect(self.reports(), ended=[1], expected={1: 6}).has("cell")
        assert look(self.reports(), ended=[1], expected={1: 5}).culprits == (1,)

    def test_a_cell_of_anyone_that_runs_there_may_launch(self):
        found = suspect(self.reports(state="running", seq=6, cell=2, line=1), ended=[1])
        assert explain.tell_suspicion(found, 3) == (
            "Ranks 0, 2, 3 have waited 3 s for rank 1, which still runs cell [2] line 1 (launch 1, "
            "jit(_reduce_sum))."
        )

    def test_of_several_ranks_it_is_told_of_each(self):
        reason = findings.Reason("cell", "has another cell to run first")
        found = findings.Suspicion("0,1,2", (2,), None, {0: reason, 1: reason})
        told = explain.tell_suspicion(found, 3)
        assert told.endswith("for ranks 0, 1, which have another cell to run first.")

    def test_a_thread_may_launch_and_who_waits_for_whom_is_told(self):
        found = suspect(self.reports(background=["thread 'loader'"]), ended=[1])
        assert explain.tell_suspicion(found, 12.4) == (
            "Ranks 0, 2, 3 have waited 12 s for rank 1, which runs no cell, but its thread "
            "'loader' still runs (launch 1, jit(_reduce_sum))."
        )
        assert explain.tell_suspicion(found, 300, [0, 3]).startswith("Ranks 0, 3 have waited 5 min")

    def test_another_rank_that_can_not_launch_makes_it_certain(self):
        reports = self.reports(background=["thread 'loader'"])
        reports[2] = report(2, [], running=False)
        assert look(reports, ended=[1, 2]).culprits == (2,)


@pytest.mark.parametrize(
    ("kind", "released"), [("missing", True), ("mismatch", False), ("circle", False)]
)
def test_only_ranks_that_wait_for_a_missing_launch_can_be_released(kind, released):
    assert findings.Report(kind, "0,1", 0, (1,), (0,)).is_releasable is released


class TestWhoseFinding:
    @staticmethod
    def reports(*cells):
        """Three launches each; ``cells`` has, for each rank, the cells' seqs that made them."""
        reports = {r: report(r, [SUM] * len(seqs), running=False) for r, seqs in enumerate(cells)}
        for r, seqs in enumerate(cells):
            launches = [
                replace(entry, processes="0,1", cell_seq=seq)
                for entry, seq in zip(reports[r].launches, seqs, strict=True)
            ]
            (counts,) = reports[r].state.launches.values()
            state = replace(reports[r].state, launches={"0,1": counts})
            reports[r] = replace(reports[r], state=state, launches=launches)
        return reports

    def test_a_skip_is_the_cells_in_which_it_was_skipped(self):
        found = look(self.reports([4, 5, 5], [4, 5]), ended=[0, 1])
        assert found.cell_seq == 5
        assert found.concerns(5)
        assert not found.concerns(4)
        assert not found.concerns(6)

    def test_a_cell_whose_launch_was_taken_for_the_skipped_one_suffers_too(self):
        found = look(self.reports([4, 5, 6], [4, 6]), ended=[0, 1])
        assert found.cell_seq == 5
        assert found.concerns(5)
        assert found.concerns(6)
        assert not found.concerns(4)

    def test_launches_of_no_cell_concern_all(self):
        assert look(self.reports([4, 0], [4]), ended=[0, 1]).concerns(9)


class TestWords:
    def test_ranks_that_still_work_are_named_by_place(self):
        reports = {r: report(r, [], line=3) for r in (0, 2)} | {3: report(3, [], line=5)}
        assert explain.tell_working(reports, [1], 5.2) == (
            "Ranks 0, 2 still work at cell [7] line 3; rank 3 still works at cell [7] line 5 (5 s);"
            " rank 1 has ended the cell."
        )
        assert explain.tell_working({3: reports[3]}, [0, 1, 2], 5.2) == (
            "Rank 3 still works at cell [7] line 5 (5 s); ranks 0-2 have ended the cell."
        )

    def test_a_function_of_an_earlier_cell_is_a_place_of_that_cell(self):
        inside = ["/cells/4.py", 9, "step", "x + 1", 4, False]
        outside = ["/lib.py", 9, "f", "", None, True]
        made = replace(report(3, [], line=9), stack=[inside, outside])
        assert explain.tell_working({3: made}, [0], 5).startswith("Rank 3 still works at cell [4] ")

    def test_many_ranks_at_many_places_take_one_line(self):
        reports = {r: report(r, [], line=1 + r) for r in range(255)}
        assert explain.tell_working(reports, [255], 300) == (
            "Rank 0 still works at cell [7] line 1; rank 1 still works at cell [7] line 2; "
            "ranks 2-254 have not ended it (5 min); rank 255 has ended the cell."
        )
        reasons = {r: findings.Reason("cell", f"still runs cell [7] line {r}") for r in range(255)}
        found = findings.Suspicion("all", (255,), None, reasons)
        assert explain.tell_suspicion(found, 8) == (
            "Rank 255 has waited 8 s for rank 0, which still runs cell [7] line 0; "
            "for rank 1, which still runs cell [7] line 1; for ranks 2-254."
        )
        reasons = {255: findings.Reason("cell", "still runs cell [7] line 6")}
        found = findings.Suspicion("all", tuple(range(255)), None, reasons)
        assert explain.tell_suspicion(found, 8) == (
            "Ranks 0-254 have waited 8 s for rank 255, which still runs cell [7] line 6."
        )

    def test_where_ranks_were_when_their_time_was_up_is_told_by_place(self):
        source = "for step in range(9):\n    s = float(jnp.sum(g))\nwhile r == 3: pass"
        reports = {r: report(r, [], line=2, names={"step": "4"}) for r in (0, 1, 5)}
        reports[3] = report(3, [], line=3, names={"step": "8"})
        reports[4] = report(4, [], running=False, names={"step": "8"})
        assert explain.tell_places(reports, [0, 1, 2, 3, 4], source, 7) == [
            "Ranks 0, 1 were in jnp.sum at cell [7] line 2.",
            "Rank 2 did not respond.",
            "Rank 3 was at cell [7] line 3.",
            "Rank 4 had ended the cell.",
            "step = 4 on ranks 0, 1, 8 on ranks 3, 4.",
        ]

    def test_the_last_launch_of_several_ranks_is_theirs(self):
        reports = {r: report(r, [MUL], running=False) for r in (1, 2)}
        reports |= {r: report(r, [MUL, SUM], line=3) for r in (0, 3)}
        assert "without launch 2, jit(_reduce_sum) (their last launch: 1, jit(multiply)" in str(
            look(reports, ended=[1, 2])
        )
        reports |= {r: report(r, [], running=False) for r in (1, 2)}
        assert "without launch 1, jit(multiply) (they have launched none)." in str(
            look(reports, ended=[1, 2])
        )

    def test_at_a_cells_end_the_last_launch_may_be_an_earlier_cells(self):
        """Rank 1 has launched nothing in cell 7, and a later cell's program since."""
        reports = {r: report(r, [MUL, SUM, MAX], running=False) for r in (0, 1)}
        for r, seqs in ((0, (4, 5, 6)), (1, (4, 6, 6))):
            launches = [replace(e, cell_seq=s, processes="0,1") for e, s in
                        zip(reports[r].launches, seqs, strict=True)]  # fmt: skip
            reports[r] = replace(reports[r], launches=launches)
        ends = {
            0: wire.cell_ends.CellEnd("ok", {"0,1": [1, SUM]}),
            1: wire.cell_ends.CellEnd("ok", {}),
        }
        told = "without launch 2, jit(_reduce_sum) (its last launch: 1, jit(multiply)"
        assert told in str(diagnose.diagnose_end(reports, ends, 5, "", 7, {}))
        reports[1] = replace(reports[1], launches=[])  # of so many others that it is not told
        told = "without launch 2, jit(_reduce_sum) (it has launched none since launch 1)."
        assert told in str(diagnose.diagnose_end(reports, ends, 5, "", 7, {}))

    @pytest.mark.parametrize("own", [0, 1], ids=["rank 1 made none here", "all made one"])
    @pytest.mark.parametrize("foreign", [False, True])
    def test_no_thread_excuses_a_cell_that_has_met_another_cells_launch(self, own, foreign):
        """A thread of rank 1 lives. Cell 5's launch on rank 0 has met one of cell 4's there."""
        made = {0: [5], 1: [4, 5][: 1 + own]}
        ends, reports = {}, {}
        for r, cells in made.items():
            told = report(r, [SUM] * len(cells), running=False)
            entries = [replace(e, cell_seq=c, processes="0,1")
                       for e, c in zip(told.launches, cells, strict=True)]  # fmt: skip
            reports[r] = replace(told, launches=entries)
            count = [len(cells), 0]
            here = [cells.count(5), 7] if 5 in cells else None
            ends[r] = wire.cell_ends.CellEnd(
                "ok", {"0,1": here} if here else {}, {"0,1": count},
                ["0,1"] if foreign else [], background=r == 1,
            )  # fmt: skip
        found = diagnose.diagnose_end(reports, ends, 5, "", 7, {})
        assert (found is None) == foreign
        assert found is None or 5 in found.cells
        alone = {r: replace(report, launches=[]) for r, report in reports.items()}
        assert diagnose.diagnose_end(alone, ends, 5, "", 7, {}) is None

    def test_an_error_of_jax_that_means_something_here_is_explained(self):
        said = "Fetching value for `jax.Array` that spans non-addressable (non process local)"
        assert "%pull" in hints.kind_hints(said)[0]
        said = "The backend (cpu) does not support cross-host device transfers. Please set"
        assert "of one machine only" in hints.kind_hints(said)[0]
        gpu = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 256.00GiB"
        assert "undo off" in hints.kind_hints(gpu)[0]
        nccl = "INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled cuda error (run with"
        assert "MEM_FRACTION" in hints.kind_hints(nccl)[0]
        assert hints.kind_hints("division by zero") == []


def on_hosts(reports):
    """The same ranks, the first two on h1 and the others on h2."""
    return {
        r: replace(rep, state=replace(rep.state, hostname="h1" if r < 2 else "h2"))
        for r, rep in reports.items()
    }


def test_a_finding_names_the_hosts_where_there_are_several():
    source = "# %%spmd\nif jax.process_index() != 1:\n    s = jnp.sum(g)\ny = 2"
    reports = {r: report(r, [MUL, SUM], line=3, lines=[2, 3]) for r in (0, 2, 3)}
    reports[1] = report(1, [MUL], running=False, lines=[2])
    lines = look(on_hosts(reports), ended=[1], source=source).lines
    assert lines[1].startswith("Rank 1 (h1) finished the cell without ")
    assert lines[2].startswith("Ranks 0 (h1), 2, 3 (h2) waited in jnp.sum at cell [7] line 3 ")

    reports = {r: report(r, [MAX if r == 3 else SUM]) for r in range(4)}
    lines = look(on_hosts(reports), ended=range(4)).lines
    assert lines[1].startswith("  ranks 0, 1 (h1), 2 (h2): jit(_reduce_sum)")
    assert lines[2].startswith("  rank 3 (h2): jit(_reduce_max)")


def test_who_is_waited_for_is_named_with_its_host():
    reports = {0: report(0, [SUM] * 2), **{r: report(r, [SUM], line=3) for r in (1, 2, 3)}}
    told = explain.tell_suspicion(suspect(on_hosts(reports), ended=[0]), 6)
    assert told.startswith(
        "Rank 0 (h1) has waited 6 s for ranks 1 (h1), 2, 3 (h2), which still run cell [7] line 3 "
    )
    assert "(launch 2, " in told
    lines = explain.tell_working(
        {3: on_hosts(reports)[3]}, [0, 1, 2], 6, explain.hosts_of(on_hosts(reports))
    )
    assert lines == (
        "Rank 3 (h2) still works at cell [7] line 3 (6 s); ranks 0, 1 (h1), 2 (h2) have ended the "
        "cell."
    )


def test_places_are_told_with_hosts():
    reports = on_hosts({r: report(r, [SUM], line=3) for r in range(4)})
    assert explain.tell_places(reports, [1, 2], "", 7) == [
        "Ranks 1 (h1), 2 (h2) were at cell [7] line 3."
    ]


def alone(reports, *, within=""):
    """Rank 0's launches need no other rank, and are of a script or of a library."""
    return {
        rank: replace(
            rep, launches=[replace(e, collective=rank > 0, within=within) for e in rep.launches]
        )
        for rank, rep in reports.items()
    }


def test_a_line_of_a_script_is_told_with_its_text() -> None:
    reports = {0: report(0, [SUM, MAX]), 1: report(1, [SUM, MUL])}
    found = look(alone(reports, within="train.py line 8: total = x.max()"), set())
    assert found is not None
    assert found.lines[1:3] == (
        "  rank 1: jit(multiply), cell [7] line 3, in train.py line 8: total = x.max()  "
        "float32[16]",
        "  rank 0: jit(_reduce_max), cell [7] line 3, in train.py line 8: total = x.max()  "
        "float32[16]",
    )


def test_a_program_that_needs_no_other_rank_is_told_as_one() -> None:
    """JAX would have let it pass: what to do instead is said where that is certain to be it."""
    hint = "Hint: jit(_reduce_max) needs nothing from other ranks"
    skipped = {0: report(0, [SUM, MAX]), 1: report(1, [SUM], running=False)}
    between = {0: report(0, [SUM, MAX, MUL, SUM]), 1: report(1, [SUM, MUL, SUM, SUM])}
    other = {0: report(0, [SUM, MAX, SUM]), 1: report(1, [SUM, MUL, SUM])}
    for reports, is_alone, hinted in (
        (skipped, True, True),
        (between, True, True),
        (skipped, False, False),
        (between, False, False),
        (other, True, False),  # two programs that differ: what comes of them is mixed
    ):
        told = alone(reports) if is_alone else reports
        found = look(told, {1}, before=a_moment_ago(told))
        assert found is not None
        assert any(line.startswith(hint) for line in found.lines) == hinted


def test_a_script_s_rank_that_has_left_by_exit_is_told() -> None:
    assert explain.tell_left([]) == []
    (one,) = explain.tell_left([1])
    assert one.startswith("Rank 1: the process has ended with exit code 0 (os._exit). A collective")
    (over,) = explain.tell_left([1], is_over=True)
    assert over.endswith("A collective that waits for it never ends, or fails.")
    (two,) = explain.tell_left([1, 2], {0: "h1", 1: "h1", 2: "h2"})
    assert two.startswith("Ranks 1 (h1), 2 (h2): the processes have ended")
    assert "waits for them never ends; Ctrl-C ends the run." in two


def test_where_nothing_is_known_of_the_place_no_call_is_named():
    """As in a ``%%px`` cell."""
    reports = {r: report(r, [MUL, SUM]) for r in (0, 2, 3)}
    for rank, one in reports.items():
        state = dataclasses.replace(one.state, line=None, frame="")
        made = [dataclasses.replace(launch, cell=None, line=None) for launch in one.launches]
        reports[rank] = dataclasses.replace(one, state=state, launches=made)
    reports[1] = report(1, [MUL], running=False)
    found = look(reports, ended=[1], source="")
    assert "Ranks 0, 2, 3 waited at cell [7] (launch 2: jit(_reduce_sum)" in str(found)


def test_what_a_replay_launched_does_not_count_as_one_that_differs_or_agrees():
    reports = {r: report(r, [MUL if r < 2 else SUM]) for r in range(3)}
    replayed = dataclasses.replace(reports[0].launches[0], cell_seq=wire.OURS)
    reports[0] = dataclasses.replace(reports[0], launches=[replayed])
    reports[3] = report(3, [SUM])
    found = look(reports, ended=[])
    assert (found.kind, found.culprits) == ("mismatch", (1,))


def test_a_launch_that_is_announced_in_vain_is_certain():
    """Rank 3 announces again what was refused: rank 2 makes it no more, a replay has made it."""
    reports = {r: report(r, [SUM]) for r in range(3)}
    replayed = dataclasses.replace(reports[2].launches[0], cell_seq=wire.OURS)
    reports[2] = dataclasses.replace(reports[2], launches=[replayed])
    entry = wire.Launch(0, "0,1,2,3", NAMES[SUM], SUM, 7, 3)
    reports[3] = dataclasses.replace(report(3, []), announced=entry)
    found = look(reports, ended=[2])
    assert (found.kind, found.seq, found.culprits, found.others) == ("missing", 0, (2,), (0, 1, 3))
    assert str(found).startswith("Rank 2 ran jit(_reduce_sum) (launch 1) with zeros when")
    # Where nobody has replayed it, it is about to be launched; where one lacks it, that one comes.
    assert look(reports | {2: report(2, [SUM])}, ended=[2]) is None
    found = look(reports | {1: report(1, [])}, ended=[2])
    assert found is None or found.kind != "missing"


# ------------------------------------------------------------------- programs still compiled (GPU)

COMPILED = {source: wire.fingerprint(source, 1000 + source) for source in NAMES}


def compiling(rank, program, seq=0):
    """A rank that compiles ``program`` (SUM, MAX or MUL), its first launch."""
    entry = wire.Launch(
        seq, "0,1,2,3", NAMES[program], wire.compiling_fingerprint(program), 7, 3, "float32[16]"
    )
    return replace(report(rank, [], line=3), announced=entry)


def compiled(rank, program, **more):
    """A rank that has compiled, and launched, it."""
    made = report(rank, [program], **more)
    entry = replace(made.launches[0], fingerprint=COMPILED[program])
    held = {"0,1,2,3": [1, fold([COMPILED[program]])]}
    return replace(made, launches=[entry], state=replace(made.state, launches=held))


def test_ranks_that_compile_the_same_or_have_done_so_are_in_step():
    reports = {r: compiling(r, SUM) for r in (0, 1)} | {r: compiled(r, SUM) for r in (2, 3)}
    assert suspect(reports, ended=[]) is None
    over = {r: compiled(r, SUM, running=False) for r in (2, 3)}
    assert suspect(reports | over, ended=[2, 3]) is None
    # In strict mode they launch it when all have compiled it.
    strict = {r: compiling(r, SUM) for r in (2, 3)}
    strict = {
        r: replace(one, announced=replace(one.announced, fingerprint=COMPILED[SUM]))
        for r, one in strict.items()
    }
    assert suspect(reports | strict, ended=[]) is None
    found = look(reports | strict | {1: compiling(1, MAX)}, ended=[])
    assert (found.kind, found.culprits) == ("mismatch", (1,))


def test_a_rank_that_never_compiles_what_others_wait_for_is_named():
    reports = {r: compiling(r, SUM) for r in (0, 2, 3)} | {1: report(1, [], running=False)}
    found = look(reports, ended=[1])
    assert (found.kind, found.culprits, found.hopeless) == (
        "missing", (1,), "ranks 0, 2, 3 wait in the compiler",
    )  # fmt: skip
    assert not found.is_releasable
    assert "Ranks 0, 2, 3 were still compiling theirs: on GPU" in str(found)


def test_ranks_that_compile_different_programs_are_named_and_wait_for_ever():
    reports = {r: compiling(r, SUM) for r in (0, 2, 3)} | {1: compiling(1, MAX)}
    found = look(reports, ended=[])
    assert (found.kind, found.culprits) == ("mismatch", (1,))
    assert found.is_hopeless and not found.has_refused


@pytest.mark.parametrize(
    ("given_up", "cell", "kind", "culprits"),
    [
        ({0: MAX, 2: MAX, 3: MAX}, 5, "mismatch", (1,)),
        ({0: MAX, 2: MAX, 3: MAX}, 4, "missing", (0, 2, 3)),  # of another cell
        ({0: SUM, 2: SUM}, 5, "missing", (3,)),
        ({0: SUM, 2: SUM, 3: SUM}, 5, "missing", (0, 2, 3)),  # nobody is to blame
    ],
)
def test_what_ranks_had_announced_when_they_were_interrupted_tells_who_differs(
    given_up, cell, kind, culprits
):
    """Another notebook looks later, when they wait no more."""
    waits = compiling(1, SUM)
    reports = {r: report(r, [], running=False) for r in (0, 2, 3)}
    for rank, program in given_up.items():
        entry = compiled(rank, program).launches[0]
        reports[rank] = replace(reports[rank], given_up=[replace(entry, cell_seq=cell)])
    reports[1] = replace(waits, announced=replace(waits.announced, cell_seq=5))
    found = look(reports, ended=[0, 2, 3])
    assert (found.kind, found.seq, found.culprits) == (kind, 0, culprits)
    assert found.is_hopeless and found.cell_seq == 5
    if kind == "mismatch":
        assert "Ranks 0, 2, 3 have not launched their program: it was refused" in str(found)


def test_what_a_rank_compiles_is_compared_with_what_others_launched_in_its_place():
    reports = {r: compiled(r, SUM) for r in (0, 2, 3)} | {1: compiling(1, MAX)}
    found = look(reports, ended=[])
    assert (found.kind, found.culprits, found.seq) == ("mismatch", (1,), 0)


def test_what_is_compiled_comes_behind_what_another_thread_has_launched_meanwhile():
    late = replace(compiled(1, SUM), announced=compiling(1, MAX).announced)
    others = {r: compiled(r, SUM, running=False) for r in (0, 2, 3)}
    found = look(others | {1: late}, ended=[0, 2, 3])
    assert (found.kind, found.culprits, found.seq) == ("missing", (0, 2, 3), 1)
    assert found.is_hopeless


def test_what_others_have_compiled_is_in_no_circle():
    """It waits for nobody, and the other rank waits in a later one for this rank."""
    free = compiled(0, SUM)
    made = replace(free.launches[0], collective=False)
    then = wire.Launch(1, "0,1,2,3", NAMES[MUL], COMPILED[MUL], 7, 4)
    held = {"0,1,2,3": [2, fold([COMPILED[SUM], COMPILED[MUL]])]}
    ahead = replace(free, launches=[made, then], state=replace(free.state, launches=held))
    assert deadlock.find({0: ahead, 1: compiling(1, SUM)}) == (None, [])
