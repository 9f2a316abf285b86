"""Who keeps the others waiting: named where it is so, and nobody where it may be chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.cluster import stragglers
from jaxcluster.model.stragglers import Made, Straggler, find, of_running, tell, told
from jaxcluster.views import status
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.lockstep import Times

LAUNCH = wire.Launch(0, "", "jit(step)", 1, cell=4, line=8, cell_seq=3)
STEP_S = 0.02  # on the devices
AHEAD = 32  # launches that devices keep, at most
Extra = Callable[[int], float]


def quiet(random: random.Random) -> float:
    return random.expovariate(1 / 0.001)


def busy(random: random.Random) -> float:
    """A machine on which others compute too: a fifth of the steps waits for a processor."""
    return quiet(random) + (random.expovariate(1 / 0.05) if random.random() < 0.2 else 0.0)


def loop(
    seed: int,
    ranks: int = 4,
    steps: int = 100,
    extra: Mapping[int, Extra] | None = None,
    noise: Callable[[random.Random], float] = quiet,
    sync: int = 1,
    late_start: Mapping[int, float] | None = None,
    step_s: float = STEP_S,
) -> dict[int, list[Made]]:
    """A training loop on ranks that read their loss, and so wait for all, each ``sync`` steps."""
    rng = random.Random(seed)
    processes = ",".join(map(str, range(ranks)))
    launch = replace(LAUNCH, processes=processes)
    at = [(late_start or {}).get(rank, 0.0) + 0.01 * rng.random() for rank in range(ranks)]
    made: dict[int, list[Made]] = {rank: [] for rank in range(ranks)}
    ends: list[float] = []
    for step in range(steps):
        for rank in range(ranks):
            at[rank] += 0.001 + noise(rng) + (extra or {}).get(rank, lambda step: 0.0)(step)
            if step >= AHEAD:
                at[rank] = max(at[rank], ends[step - AHEAD])
            made[rank].append(Made(processes, step, at[rank], launch))
        ends.append(max([*at, *ends[-1:]]) + step_s)
        if sync and step % sync == sync - 1:
            at = [max(one, ends[-1]) for one in at]
    return made


SEEDS = range(10)
SLOW: dict[int, Extra] = {2: lambda step: 0.05}


@pytest.mark.parametrize("ranks", [3, 4, 16])
@pytest.mark.parametrize("sync", [1, 10])
def test_a_rank_that_is_50_ms_behind_is_named(ranks: int, sync: int) -> None:
    for seed in SEEDS:
        found = find(loop(seed, ranks=ranks, sync=sync, extra=SLOW))
        assert found is not None
        assert found.ranks == (2,)
        assert found.share > 0.9
        assert found.behind_s == pytest.approx(0.05, abs=0.005)
        assert found.launch.line == 8


def test_one_of_two_ranks_is_named() -> None:
    for seed in SEEDS:
        found = find(loop(seed, ranks=2, extra={1: lambda step: 0.05}))
        assert found is not None
        assert found.ranks == (1,)


def test_a_laggard_is_named_on_a_busy_machine() -> None:
    named = [find(loop(seed, steps=200, noise=busy, extra=SLOW)) for seed in SEEDS]
    assert {one.ranks for one in named if one} == {(2,)}
    assert sum(one is not None for one in named) >= 9


@pytest.mark.parametrize("noise", [quiet, busy])
@pytest.mark.parametrize("sync", [0, 1, 10])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_nobody_is_named_where_ranks_are_alike(
    ranks: int, sync: int, noise: Callable[[random.Random], float]
) -> None:
    assert not [
        seed for seed in SEEDS if find(loop(seed, ranks=ranks, sync=sync, noise=noise, steps=200))
    ]


def test_nobody_is_named_by_chance_in_short_cells() -> None:
    named = [seed for seed in range(300) if find(loop(seed, ranks=2, steps=60, noise=busy))]
    assert named == []


def test_nobody_is_named_for_load_that_comes_and_goes() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        slowed = [rng.randrange(4) for _ in range(8)]  # each rank for a while
        extra = {
            rank: lambda step, own=[one == rank for one in slowed]: 0.03 * own[step * 8 // 200]
            for rank in range(4)
        }
        assert find(loop(seed, steps=200, extra=extra)) is None


@pytest.mark.parametrize(
    "how",
    [
        {"extra": {2: lambda step: 2.0 * (step == 50)}},
        {"late_start": {2: 0.3}, "sync": 0},
        {"late_start": {2: 0.3}, "sync": 0, "step_s": 0.0005},
        {
            "late_start": {2: 0.3},
            "sync": 0,
            "step_s": 0.0005,
            "extra": dict.fromkeys(range(4), lambda step: 0.015),
        },
        {"extra": {2: lambda step: 0.002}},
        {"extra": {2: lambda step: 0.05}, "steps": 6},
        {"extra": {2: lambda step: 0.05}, "step_s": 5.0},
    ],
    ids=[
        "one stall",
        "late start",
        "late start, fast devices",
        "late start, slow hosts",
        "2 ms",
        "few steps",
        "long steps",
    ],
)
def test_nobody_is_named_for_what_is_once_or_little(how: dict[str, Any]) -> None:
    assert not [seed for seed in SEEDS if find(loop(seed, **how))]


def test_a_host_is_named_where_all_its_ranks_are_slow() -> None:
    hosts = {rank: f"h{rank // 2}" for rank in range(6)}
    both: dict[int, Extra] = {2: lambda step: 0.05, 3: lambda step: 0.05}
    for seed in SEEDS:
        found = find(loop(seed, ranks=6, extra=both), hosts)
        assert found is not None
        assert found.ranks == (2, 3)


def test_clocks_that_are_not_known_well_name_nobody() -> None:
    assert find(loop(0, extra=SLOW), error_s=0.03) is None


def test_the_last_cell_counts() -> None:
    before, now = loop(0, extra=SLOW), loop(0)
    made = {
        rank: before[rank]
        + [
            replace(one, seq=one.seq + 100, launch=replace(one.launch, cell_seq=4))
            for one in now[rank]
        ]
        for rank in before
    }
    assert find(before) is not None
    assert find(made) is None


def test_a_rank_that_does_not_answer_names_nobody() -> None:
    made = loop(0, extra=SLOW)
    assert find({rank: own for rank, own in made.items() if rank != 1}) is None
    assert find({}) is None


FOUND = Straggler((2,), 0.93, 0.048, 240, 11.0, 20.0, LAUNCH)


@pytest.mark.parametrize(
    ("found", "is_over", "said"),
    [
        (
            replace(FOUND, spent="at line 6 (load_batch)"),
            False,
            "Rank 2 comes last into 93 % of the launches of cell [4], 48 ms behind, at line 6 "
            "(load_batch).",
        ),
        (
            FOUND,
            True,
            "Rank 2 came last into 93 % of the launches of cell [4], 48 ms behind, before the "
            "launch at line 8.",
        ),
        (
            replace(FOUND, ranks=(2, 3), behind_s=1.25),
            False,
            "Ranks 2, 3 come last into 93 % of the launches of cell [4], 1.2 s behind, before "
            "the launch at line 8.",
        ),
        (
            replace(FOUND, launch=replace(LAUNCH, cell=None, line=None, within="train.py line 3")),
            True,
            "Rank 2 came last into 93 % of the launches, 48 ms behind, before the launch in "
            "train.py line 3.",
        ),
    ],
)
def test_it_is_a_sentence(found: Straggler, is_over: bool, said: str) -> None:
    assert tell(found, is_over=is_over) == said


# --------------------------------------------------------------------------- asking for it


class Ranks:
    """Their sockets, with a clock for each host; the second host's answers take longer."""

    def __init__(self, made: Mapping[int, Sequence[Made]], clocks: Sequence[float]) -> None:
        self.made, self.clocks, self.ranks = made, clocks, list(made)

    def gather(
        self, ranks: Sequence[int], request: Operation[Any], timeout_s: float
    ) -> dict[int, Any]:
        del timeout_s
        return {rank: self._answer(rank, request) for rank in ranks}

    def _answer(self, rank: int, request: Operation[Any]) -> Any:
        if not isinstance(request, Times):  # where it is: its cell has ended
            return SimpleNamespace(op="error", body={})
        ahead = self.clocks[rank // 2]
        own = self.made[rank][-request.launches :] if request.launches else []
        rows = [[one.seq, 0, int(1e6 * (one.at_s + ahead))] for one in own]
        now = stragglers.time.monotonic() + ahead
        times = wire.LaunchTimes(rank, int(1e6 * now), [own[0].launch] if own else [], rows)
        return SimpleNamespace(op="reply", body=times)


def test_those_who_show_it_ask_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], []

    def find(world: Any, looks: int) -> Straggler:
        asked.append(looks)
        now[0] += 0.5  # many ranks
        return FOUND

    monkeypatch.setattr(stragglers, "find", find)
    monkeypatch.setattr(stragglers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watch = stragglers.Watch(SimpleNamespace())  # type: ignore[arg-type]
    for _ in range(100):
        watch.keep_up()
        now[0] += 0.5
    assert watch.found == FOUND
    assert len(asked) == 3  # in 52 s: a fiftieth of the time


def test_it_is_of_the_cell_that_runs() -> None:
    running, idle = (wire.RankState(0, 1, "h", kind, seq=3) for kind in ("running", "idle"))
    assert told(FOUND, [running]).startswith("Rank 2 comes last into 93 %")
    assert told(FOUND, [idle]).startswith("Rank 2 came last into 93 %")
    assert told(None, [running]) == ""
    assert of_running(FOUND, [replace(running, seq=4)]) is None


def test_the_live_table_says_it() -> None:
    shown = status.bundle([], {}, {}, tell(FOUND))
    assert "Rank 2 comes last" in shown["text/plain"]
    assert "<p>Rank 2 comes last" in shown["text/html"]


@pytest.mark.parametrize("clocks", [(0.0, 0.0), (0.0, 1000.0), (5.0, -3.0)])
def test_clocks_of_hosts_are_aligned(clocks: Sequence[float]) -> None:
    facts = [SimpleNamespace(host_key=f"h{rank // 2}") for rank in range(4)]
    for extra, ranks in ((SLOW, (2,)), ({}, None)):
        world: Any = SimpleNamespace(
            num_processes=4,
            link=Ranks(loop(1, extra=extra), clocks),
            record=SimpleNamespace(facts=facts),
        )
        found = stragglers.find(world)
        assert (found and found.ranks) == ranks
