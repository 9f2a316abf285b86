"""Findings from recorded journals: who broke the lockstep, and when nobody did."""

from __future__ import annotations

from jaxcluster import diagnose, wire

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
    )
    return wire.RankReport(state, [], launches, names or {})


def look(reports, ended, source="", errors=None, told=None):
    return diagnose.diagnose(reports, ended, source, 7, errors, told)


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
        "Ranks 0, 2, 3 wait in jnp.sum at cell [7] line 3 (launch 2: jit(_reduce_sum)).\n"
        "Rank 1 finished the cell without it (its last launch: 1, jit(multiply), cell [7] line 2"
        "  float32[16]).\n"
        "Hint: line 2 runs jnp.sum only `if jax.process_index() != 1`."
    )


def test_a_wait_on_another_line_than_the_launch_names_both():
    source = "if r != 1:\n    s = jnp.sum(g)\n    print(s)"
    reports = {r: report(r, [SUM], line=3, lines=[2]) for r in (0, 2, 3)}
    reports[1] = report(1, [], running=False)
    found = look(reports, ended=[1], source=source)
    assert found.lines[0] == (
        "Ranks 0, 2, 3 wait at cell [7] line 3 for jnp.sum of line 2 (launch 1: jit(_reduce_sum))."
    )


def test_an_uneven_loop_shows_the_counter_of_each_rank():
    source = "for step in range(n):\n    s = jnp.sum(g)"
    reports = {0: report(0, [SUM] * 3, line=2, lines=[2] * 3, names={"step": "2"})}
    for r in (1, 2, 3):
        reports[r] = report(r, [SUM] * 2, running=False, lines=[2] * 2, names={"step": "1"})
    found = look(reports, ended=[1, 2, 3], source=source)
    assert "step = 2 on rank 0, 1 on ranks 1-3." in found.lines
    assert "the last batch is the usual cause" in str(found)
    assert any(line.startswith("Ranks 1-3 finished the cell without it") for line in found.lines)


def test_an_error_before_the_launch_is_named():
    reports = {r: report(r, [SUM], line=3) for r in (0, 2, 3)}
    reports[1] = report(1, [], running=False)
    errors = {1: wire.ErrorInfo("ValueError", "bad batch", [], lineno=2)}
    found = look(reports, ended=[1], source="x", errors=errors)
    assert "Rank 1 raised ValueError on line 2 before it" in str(found)


def test_a_rank_that_was_not_told_to_run_the_cell_is_said_so():
    reports = {r: report(r, [SUM], line=3) for r in (0, 2, 3)}
    reports[1] = report(1, [], running=False)
    found = look(reports, ended=[1], source="s = jnp.sum(g)", told=[0, 2, 3])
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
    assert "only `if r == 1`" in str(found)


def test_the_same_programs_in_another_order_point_to_iteration_order():
    reports = {r: report(r, [SUM, MAX]) for r in (0, 2, 3)}
    reports[1] = report(1, [MAX, SUM])
    assert "in another order" in str(look(reports, ended=[0, 1, 2, 3]))


def test_different_shapes_are_named():
    reports = {r: report(r, [SUM]) for r in (0, 1, 2)}
    other = wire.Launch(0, "0,1,2,3", NAMES[SUM], 99, 7, 3, "float32[8]")
    state = report(3, [99 and SUM]).state
    state = wire.RankState(**{**state.__dict__, "launches": {"0,1,2,3": [1, 99]}})
    reports[3] = wire.RankReport(state, [], [other])
    assert "float32[16] against float32[8]" in str(look(reports, ended=[]))


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
    assert diagnose.in_step({r: rep.state.launches for r, rep in reports.items()})


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


class TestWords:
    def test_ranks_that_still_work_are_named_by_place(self):
        reports = {r: report(r, [], line=3) for r in (0, 2)} | {3: report(3, [], line=5)}
        assert diagnose.tell_working(reports, [1], 5.2) == [
            "Ranks 0, 2 still work at cell [7] line 3 (5 s).",
            "Rank 3 still works at cell [7] line 5 (5 s); rank 1 has ended the cell.",
        ]
        assert diagnose.tell_working({3: reports[3]}, [0, 1, 2], 5.2) == [
            "Rank 3 still works at cell [7] line 5 (5 s); ranks 0-2 have ended the cell.",
        ]

    def test_where_ranks_were_when_their_time_was_up_is_told_by_place(self):
        source = "for step in range(9):\n    s = float(jnp.sum(g))\nwhile r == 3: pass"
        reports = {r: report(r, [], line=2, names={"step": "4"}) for r in (0, 1, 5)}
        reports[3] = report(3, [], line=3, names={"step": "8"})
        reports[4] = report(4, [], running=False, names={"step": "8"})
        assert diagnose.tell_places(reports, [0, 1, 2, 3, 4], source, 7) == [
            "Ranks 0, 1 were in jnp.sum at cell [7] line 2.",
            "Rank 2 gave no sign of life.",
            "Rank 3 was at cell [7] line 3.",
            "Rank 4 had ended the cell.",
            "step = 4 on ranks 0, 1, 8 on ranks 3, 4.",
        ]

    def test_the_last_launch_of_several_ranks_is_theirs(self):
        reports = {r: report(r, [MUL], running=False) for r in (1, 2)}
        reports |= {r: report(r, [MUL, SUM], line=3) for r in (0, 3)}
        assert "without it (their last launch: 1, jit(multiply)" in str(look(reports, ended=[1, 2]))
        reports |= {r: report(r, [], running=False) for r in (1, 2)}
        assert "without it (they have launched none)." in str(look(reports, ended=[1, 2]))

    def test_a_silent_rank_may_be_stopped(self):
        assert "`kill -CONT 812` lets it go on" in diagnose.tell_silent(1, 812)

    def test_an_error_of_jax_that_means_something_here_is_explained(self):
        said = "Fetching value for `jax.Array` that spans non-addressable (non process local)"
        assert "%pull" in diagnose.kind_words(said)[0]
        assert diagnose.kind_words("division by zero") == []
