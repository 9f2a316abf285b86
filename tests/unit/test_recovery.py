"""How long a replay is waited for, without any rank."""

from __future__ import annotations

from dataclasses import dataclass

from jaxcluster import wire
from jaxcluster.cluster.recovery import Replay


@dataclass
class Slow(Replay):
    """Rank 1 replays ``programs`` programs, one in so many looks."""

    programs: int = 8
    looks_each: int = 10
    looks: int = 0

    def step(self, answer_s: float = 1.0) -> bool:
        self.looks += 1
        ran = self.looks // self.looks_each
        self._asked = {1: [] if ran >= self.programs else [None]}  # type: ignore[list-item]
        self._looks.append((0.0, {r: told(r, ran if r else self.programs) for r in range(2)}))
        return ran >= self.programs


def told(rank: int, number: int) -> wire.RankReport:
    launches = [wire.Launch(n, "0,1", "f", 7, 3, 1, "") for n in range(number)]
    counts = {"0,1": [number, 7 * number]}
    state = wire.RankState(rank, 100 + rank, "here", "idle", ended=5, launches=counts)
    return wire.RankReport(state, [], launches)


def test_a_replay_that_makes_progress_is_waited_for() -> None:
    assert Slow(link=None).settle(timeout_s=0.5)  # type: ignore[arg-type]


def test_a_replay_that_makes_none_is_given_up() -> None:
    slow = Slow(link=None, looks_each=1_000_000)  # type: ignore[arg-type]
    assert not slow.settle(timeout_s=0.2)
    assert slow.stuck == "not in lockstep after 0.2 s"
