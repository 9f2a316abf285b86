"""When values are asked for and bound: between the same cells of all notebooks, on all ranks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.cluster import Cluster, array_queries, world
from jaxcluster.cluster.world import World
from jaxcluster.errors import NoCluster, RankHung, UsageError
from jaxcluster.model import layout


def state(rank: int, what: str = "idle", taken: int = 7, queued: int = 0) -> wire.RankState:
    return wire.RankState(rank, 9, "here", what, taken=taken, ended=taken, queued=queued)


class Ranks(World):
    """Each look at them has the next states; the last ones stay."""

    def __init__(self, *looks: list[wire.RankState], is_lost: bool = False) -> None:
        self.looks, self.is_lost = list(looks), is_lost
        self.told: list[str] = []
        self.turns: Any = SimpleNamespace(quiet=self.quiet)
        self.num_processes = 2
        self.record: Any = SimpleNamespace(facts=[None, None])

    @contextlib.contextmanager
    def quiet(self) -> Iterator[dict[int, int]]:
        if self.is_lost:
            raise NoCluster("The first host is lost.", "")
        self.told.append("has the turn")
        yield {0: 7, 1: 7}
        self.told.append("gives it back")

    def status(self) -> list[wire.RankState]:
        self.told.append("looks")
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def course(self) -> list[str]:
        with self.between_cells():
            self.told.append("acts")
        return self.told


FREE = [state(0), state(1)]
HAD = ["has the turn", "looks", "acts", "gives it back"]


@pytest.mark.parametrize(
    "busy", [state(1, "running"), state(1, queued=1), state(1, taken=6)], ids=str
)
def test_cells_that_run_wait_or_are_on_their_way_are_waited_for(busy: wire.RankState) -> None:
    assert Ranks(FREE).course() == HAD
    assert Ranks([state(0), busy], FREE).course() == [*HAD[:2], *HAD[1:]]


def test_a_cell_that_goes_wrong_gets_the_turn_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs it to bring the ranks back, and would not end."""
    monkeypatch.setattr(world, "HOLD_S", 0.0)
    assert Ranks([state(0, "running"), state(1)], FREE).course() == [
        "has the turn",
        "looks",
        *HAD[3:],
        *HAD,
    ]


def test_what_will_never_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "HOLD_S", 0.02)
    assert Ranks([state(0), state(1, taken=6)]).course()[-2:] == HAD[-2:]  # its notebook has died
    assert Ranks([state(0), state(1, "dead", taken=6)]).course() == HAD
    stuck = Ranks([state(0), state(1, "running")])
    said = "Rank 1 did not answer within 0.02 s. Rank 1 is in cell"
    with pytest.raises(RankHung, match=re.escape(said)), stuck.between_cells(0.02):
        raise AssertionError("it runs a cell")
    assert stuck.told.count("has the turn") == stuck.told.count("gives it back")
    assert Ranks(FREE, is_lost=True).course() == ["acts"]


def test_strict_mode_begins_between_cells() -> None:
    """On in another notebook's cell on one rank, and off on the other, it would wait for ever."""
    ranks: Any = Ranks([state(0, "running"), state(1)], FREE)
    ranks.ask = lambda *asked, **more: ranks.told.append("acts")
    cluster = strict_cluster(ranks)
    Cluster.strict(cluster, True)
    assert ranks.told == [*HAD[:2], *HAD[1:]]


def test_new_processes_are_strict_without_a_second_turn() -> None:
    """Who brings them has it, and waited for it for ever."""
    ranks: Any = Ranks([FREE], FREE)
    ranks.ask = lambda *asked, **more: ranks.told.append("acts")
    cluster = strict_cluster(ranks)
    Cluster.equip(cluster)
    assert ranks.told == ["acts"] and ranks.is_strict


def strict_cluster(ranks: Any) -> Any:
    made: Any = SimpleNamespace(world=ranks, num_processes=2, ensure_open=lambda: None)
    made.undo_nbytes, made.copies_nbytes, made.stays_strict = None, 0, True
    made._switch_strict = lambda on: Cluster._switch_strict(made, on)
    return made


@pytest.mark.parametrize(
    ("then", "now"), [(FREE, [state(0), state(1, taken=8)]), ([state(0, "running")] * 2, FREE)]
)
def test_copies_that_a_cell_makes_anew_meanwhile_are_not_said_to_differ(
    monkeypatch: pytest.MonkeyPatch, then: list[wire.RankState], now: list[wire.RankState]
) -> None:
    found = SimpleNamespace(name="x", differences=("one",))
    monkeypatch.setattr(array_queries, "ask_each", lambda *asked: ({0: 1}, {}))
    monkeypatch.setattr(layout, "compare", lambda *asked: found)
    ranks = Ranks(then, now)
    with pytest.raises(UsageError, match="ran a cell meanwhile"):
        array_queries.check(ranks, "x")
    ranks.looks = [FREE]
    assert array_queries.check(ranks, "x") is found
