"""Profiles of several ranks, made up: what belongs together, by one clock, and what it says."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import traces

from jaxcluster import wire
from jaxcluster.model import arrivals, perfetto, profile
from jaxcluster.model.arrivals import Clocks, RankProfile
from jaxcluster.model.profile import Profile
from jaxcluster.model.stragglers import Made
from jaxcluster.views import profile as view

LAUNCH = wire.Launch(0, "0,1,2,3", "jit(step)", 1, cell=4, line=8, cell_seq=3)
OPERATION = ["jit_step", "all-reduce.1"]
STEP_S, COLLECTIVE_S = 0.02, 0.005
HERE = Clocks(dict.fromkeys(range(8), "a"), {"a": (0.0, 0.0)})


def rank_of(
    rank: int,
    came: Sequence[float],
    ends: Sequence[float],
    runs: Sequence[int] | None = None,
    **more: object,
) -> RankProfile:
    """A rank that came into a collective at these times, and was in it until those."""
    count = len(came)
    starts, until = (np.round(1e9 * np.array(times)).astype(int) for times in (came, ends))
    numbers = np.arange(count)
    zeros = np.zeros(count, int)
    run = zeros - 1 if runs is None and "turns" in more else np.array(runs or 100 + numbers)
    turn = np.array(more.pop("turns")) if "turns" in more else zeros
    columns = [zeros, zeros, starts, until - starts, zeros, run, zeros, turn, starts, until]
    kinds = (*wire.SLICE_COLUMNS, *wire.COLLECTIVE_COLUMNS)
    packed = [column.astype(kind).tobytes() for column, kind in zip(columns, kinds, strict=True)]
    told = wire.ProfileTracks(rank, 10, ["all-reduce.1"], ["device 0"], [OPERATION])
    return arrivals.unpacked(replace(told, **more), packed)  # type: ignore[arg-type]


def loop(
    steps: int = 40, ranks: int = 4, late: Mapping[int, float] | None = None, seed: int = 0
) -> dict[int, tuple[list[float], list[float]]]:
    """When each rank came into the collective of each step, and when that ended there."""
    rng = random.Random(seed)
    at, found = 1.0, {rank: ([], []) for rank in range(ranks)}  # type: ignore[var-annotated]
    for _ in range(steps):
        came = [
            at + STEP_S + rng.expovariate(1000) + (late or {}).get(r, 0.0) for r in range(ranks)
        ]
        at = max(came) + COLLECTIVE_S
        for rank in range(ranks):
            found[rank][0].append(came[rank])
            found[rank][1].append(at + 1e-5 * rng.random())
    return found


def together(
    times: Mapping[int, tuple[Sequence[float], Sequence[float]]],
    made: Mapping[int, Sequence[Made]] | None = None,
    clocks: Clocks = HERE,
    cell_seq: int | None = 3,
    **more: object,
) -> Profile:
    found = {rank: rank_of(rank, *both, **more) for rank, both in times.items()}
    hosts = {rank: clocks.hosts[rank] for rank in found}
    launches = made if made is not None else launches_of(times)
    names = {rank: f"rank {rank}" for rank in found}
    told, _ = profile.put_together(
        found, Clocks(hosts, clocks.offsets), launches, names, cell_seq
    )  # fmt: skip
    return told


def launches_of(
    times: Mapping[int, tuple[Sequence[float], Sequence[float]]], early_s: float = 0.001
) -> dict[int, list[Made]]:
    processes = ",".join(map(str, times))
    launch = replace(LAUNCH, processes=processes)
    return {
        rank: [Made(processes, seq, at - early_s, launch) for seq, at in enumerate(came)]
        for rank, (came, _) in times.items()
    }


@pytest.mark.parametrize("seed", range(10))
def test_a_laggard_of_50_ms_is_named_and_nobody_else(seed: int) -> None:
    found = together(loop(late={2: 0.05}, seed=seed))
    assert found.straggler is not None
    assert found.straggler.ranks == (2,)
    (row,) = found.collectives
    assert (row.last, row.times, row.place) == (2, 40, "cell [4] line 8")
    assert row.share > 0.95
    assert 0.045 < row.behind_s < 0.055
    assert "Rank 2 came last into 100 % of the launches of cell [4]" in view.named(found)
    even = together(loop(seed=seed))
    assert even.straggler is None
    assert even.collectives[0].last is None
    assert view.named(even) == ""


def test_who_is_late_within_a_program_is_named_by_its_collectives() -> None:
    times = loop(late={1: 0.03})
    even = launches_of(loop(late={}))  # launches are alike: the devices are not
    found = together(times, even)
    assert found.straggler is not None
    assert (found.straggler.ranks, found.into) == ((1,), "collectives")
    assert "last into 100 % of the collectives" in view.named(found)


def test_time_in_collectives_is_each_ranks_own_and_overlaps_count_once() -> None:
    times = {0: ([1.0, 2.0], [1.5, 2.5]), 1: ([1.4, 2.4], [1.5, 2.5])}
    found = together(times)
    assert found.in_collectives_s == pytest.approx({0: 1.0, 1: 0.2})
    assert found.collectives[0].seconds == pytest.approx({0: 1.0, 1: 0.2})
    assert found.span_s == pytest.approx(1.5)
    overlapping = {0: ([1.0, 1.2], [1.5, 1.6]), 1: ([1.4, 1.45], [1.5, 1.6])}
    assert together(overlapping).in_collectives_s == pytest.approx({0: 0.6, 1: 0.2})


def test_steps_are_the_users_own_where_there_are_any() -> None:
    found = together(loop())
    assert found.steps is not None
    assert (found.steps.name, found.steps.count) == ("jit(step)", 40)
    assert "40 launches of jit(step), " in view.headline(found, "cell [4]")
    steps = [[number, number * 10**7, number * 10**7 + 3 * 10**6] for number in range(5)]
    found = together(loop(), steps=steps)
    assert found.steps is not None
    assert (found.steps.count, found.steps.median_s) == (5, 0.003)
    assert "5 steps, 3 ms each" in view.headline(found, "cell [4]")


def test_steps_that_the_journal_no_longer_has_are_counted() -> None:
    times = loop()
    last = {rank: own[-10:] for rank, own in launches_of(times).items()}
    found = together(times, last)
    assert found.steps is not None
    assert found.steps.count == 40


def test_ranks_that_began_apart_are_compared_run_by_run() -> None:
    times = loop(late={2: 0.05})
    runs = list(range(100, 140))
    cut = {rank: 3 * rank for rank in times}
    found = {
        rank: rank_of(rank, came[cut[rank] :], ends[cut[rank] :], runs[cut[rank] :])
        for rank, (came, ends) in times.items()
    }
    (one,) = arrivals.arrivals(found, {})
    assert one.runs.tolist() == runs[9:]
    assert set(one.starts.argmax(1).tolist()) == {2}


def test_without_the_runs_numbers_they_are_compared_by_when_they_end() -> None:
    times = loop(late={2: 0.05})
    cut = {0: 2, 1: 0, 2: 5, 3: 1}
    found = {
        rank: rank_of(rank, came[cut[rank] :], ends[cut[rank] :], turns=range(40 - cut[rank]))
        for rank, (came, ends) in times.items()
    }
    (one,) = arrivals.arrivals(found, {})
    assert len(one.runs) >= 34
    assert np.abs(np.diff(one.ends, axis=1)).max() < 1e6
    assert set(one.starts.argmax(1).tolist()) == {2}


def test_only_ranks_that_are_in_it_together_are_compared() -> None:
    times = loop(late={2: 0.05})
    found = {rank: rank_of(rank, *both) for rank, both in times.items()}
    pairs = arrivals.Known("cell [1] line 2", (frozenset({0, 1}), frozenset({2, 3})))
    both = arrivals.arrivals(found, {("jit_step", "all-reduce.1"): pairs})
    assert [one.ranks for one in both] == [(0, 1), (2, 3)]
    alone = arrivals.Known("", tuple(frozenset({rank}) for rank in range(4)))
    assert arrivals.arrivals(found, {("jit_step", "all-reduce.1"): alone}) == []


TEXT = """HloModule jit_step, num_partitions=4

FileNames
1 "/cells/1-a.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=0 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %all-reduce.1 = f32[4]{0} all-reduce(%p), replica_groups={{0,1},{2,3}}, \
metadata={stack_frame_id=1}
}
"""


def test_the_compiled_text_says_the_line_and_who_waits_for_whom() -> None:
    text = base64.b64encode(zlib.compress(TEXT.encode())).decode()
    one = rank_of(
        0, [1.0], [2.0], texts={"jit_step": text}, processes={"jit_step": [0, 0, 1, 2]},
        files={"/cells/1-a.py": [1, "1-a.py", False]},
    )  # fmt: skip
    known = arrivals.known_of({0: one})
    assert known == {
        ("jit_step", "all-reduce.1"): arrivals.Known(
            "cell [1] line 7", (frozenset({0}), frozenset({1, 2}))
        )
    }
    broken = base64.b64encode(zlib.compress(b"%what")).decode()
    assert arrivals.known_of({0: rank_of(0, [1.0], [2.0], texts={"jit_step": broken})}) == {}


# --------------------------------------------------------------------------- clocks


def on_hosts(offset_s: float, error_s: float) -> Clocks:
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    return Clocks(hosts, {"a": (0.0, 1e-5), "b": (offset_s, error_s)})


def test_hosts_clocks_are_made_one_and_made_better_by_the_ends() -> None:
    times = loop()
    ahead_s = 1000.0  # of host b's clock; it is known to 3 ms, and is wrong by 2
    moved = {
        rank: tuple([at + ahead_s * (rank > 1) for at in column] for column in both)
        for rank, both in times.items()
    }
    found = {rank: rank_of(rank, *both) for rank, both in moved.items()}
    arrived = arrivals.arrivals(found, {})
    shifts, error_s = arrivals.align(arrived, on_hosts(ahead_s + 0.002, 0.003))
    assert shifts[0] == shifts[1] == 0
    assert shifts[2] == shifts[3] == pytest.approx(-1e9 * ahead_s, abs=5e4)
    assert error_s == 0.003
    told = together(moved, launches_of(times), on_hosts(ahead_s + 0.002, 0.003))
    assert told.span_s < 2


def test_the_ends_move_a_clock_no_further_than_it_may_be_wrong() -> None:
    times = loop()
    late = {
        rank: (came, [end + 0.5 * (rank > 1) for end in ends])
        for rank, (came, ends) in times.items()
    }
    found = {rank: rank_of(rank, *both) for rank, both in late.items()}
    shifts, _ = arrivals.align(arrivals.arrivals(found, {}), on_hosts(0.0, 0.001))
    assert shifts[2] == pytest.approx(-1.01e6, abs=1e4)
    shifts, _ = arrivals.align([], on_hosts(0.25, 0.001))  # nothing in common
    assert shifts == {0: 0, 1: 0, 2: -250_000_000, 3: -250_000_000}


# --------------------------------------------------------------------------- the trace


def test_the_trace_has_a_process_for_each_rank_and_begins_at_the_first() -> None:
    times = {0: ([1.0], [1.5]), 1: ([1.25], [1.5])}
    found = {rank: rank_of(rank, *both) for rank, both in times.items()}
    made = launches_of(times, early_s=0.1)
    shown = profile.processes(found, made, {0: "rank 0 (h1)", 1: "rank 1 (h2)"})
    slices = traces.read(b"".join(perfetto.trace(shown)))
    assert [(one.process, one.track, one.name) for one in slices] == [
        ("rank 0 (h1)", "launches", "jit(step), cell [4] line 8"),
        ("rank 0 (h1)", "device 0", "all-reduce.1"),
        ("rank 1 (h2)", "launches", "jit(step), cell [4] line 8"),
        ("rank 1 (h2)", "device 0", "all-reduce.1"),
    ]
    assert [one.start // 10**6 for one in slices] == [0, 100, 250, 350]
    assert slices[1].end // 10**6 == 600


def test_slices_nest_where_several_begin_and_end_at_one_moment() -> None:
    rows = [(0, 100), (0, 50), (0, 50), (50, 50), (100, 20), (100, 0), (120, 5)]
    names = [f"slice {number}" for number in range(len(rows))]
    starts, nanos = (np.array(column) for column in zip(*rows, strict=True))
    label = np.arange(len(rows))
    order = np.random.default_rng(0).permutation(len(rows))
    process = perfetto.Process(
        7, "rank 6", ["device 0"], names, np.zeros(len(rows), int), label[order], starts[order],
        nanos[order],
    )  # fmt: skip
    found = traces.read(b"".join(perfetto.trace([process])))
    assert {(one.name, one.start, one.end) for one in found} == {
        (name, start, start + long) for name, (start, long) in zip(names, rows, strict=True)
    }


def test_perfettos_own_reader_reads_it() -> None:
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    times = loop(ranks=3)
    found = {rank: rank_of(rank, *both) for rank, both in times.items()}
    names = {rank: f"rank {rank}" for rank in found}
    shown = profile.processes(found, launches_of(times), names)
    trace = pb.Trace()
    trace.ParseFromString(b"".join(perfetto.trace(shown)))
    events = [one.track_event for one in trace.packet if one.HasField("track_event")]
    assert len(events) == 3 * 40 * 3  # begins, ends and launches
    processes = {one.track_descriptor.process.process_name for one in trace.packet}
    assert processes - {""} == {"rank 0", "rank 1", "rank 2"}


# --------------------------------------------------------------------------- bounds and views


def test_many_ranks_are_asked_for_fewer_slices_each() -> None:
    assert profile.most_slices(1) == profile.MOST_SLICES
    assert 64 * profile.most_slices(64) <= profile.ALL_SLICES
    assert profile.most_slices(256) > 5_000


def test_what_is_left_out_and_who_is_missing_is_said() -> None:
    found = together(loop(), left_out=1000, shortest_ns=3_400, uncounted=7)
    dead = "it has died (exit code 3)"
    found = replace(found, missing={3: dead, 5: dead, 4: "it gave no answer"}, files={0: "/p/0"})
    told = view.text(found, "cell [4]")
    assert "The table ends before the profile does: 7 collectives of a rank came later." in told
    assert "4,000 short slices (up to 3 µs) are left out of Perfetto's file" in told
    assert "Rank 4 has no profile: it gave no answer." in told
    assert "Ranks 3, 5 have no profile: it has died (exit code 3)." in told


def test_the_table_as_text_html_and_json() -> None:
    found = together(loop(late={2: 0.05}))
    found = replace(found, folder="/p", trace="/p/x.pftrace.gz", files=dict.fromkeys(range(4), "f"))
    text = view.text(found, "cell [4]")
    assert "all-reduce.1  jit(step)  40" in text
    assert "rank 2: 100 %, " in text
    assert "tensorboard --logdir /p" in text
    html = view.html(found, "cell <4>")
    assert "cell &lt;4&gt;" in html
    assert "<table" in html
    assert "data:image/svg+xml" in html
    bundle = view.bundle(found, "cell [4]")
    again = json.loads(json.dumps(bundle[view.MIME]))
    assert again["told"].startswith("Rank 2 came last into")
    assert again["collectives"][0]["operation"] == "all-reduce.1"
    empty = Profile(0.0, None, (), {}, None, "", 0.0, folder="/p", missing={0: "it gave no answer"})
    assert view.text(empty, "cell [4]").startswith("Profile of cell [4]: 0 ranks.")
    assert "no profile" in view.html(empty, "cell [4]")
