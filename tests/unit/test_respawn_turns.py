"""Who has the turn, and whose replies wait, while ranks get new processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.cluster import respawn, restart
from jaxcluster.errors import RecoveryError
from jaxcluster.model.lineage import Lineage
from jaxcluster.records.saved_states import Kept
from jaxcluster.wire.cell_ends import CellEnd
from jaxcluster.wire.link import Event
from jaxcluster.wire.ops.lockstep import AtRest, Rest
from jaxcluster.wire.ops.state import HoldReplies, SaveReport


class Cluster:
    """One whose steps are written down."""

    def __init__(self, fails: bool = False) -> None:
        self.steps: list[str] = []
        self.world = self.make_world("old")
        self.kept: Any = None
        self.closed, self.sent, self.recovered, self.fails = False, (), "", fails
        self.life = SimpleNamespace(why="")
        self.lineage = Lineage()
        self.rest = Rest(True, 3, {}, {})

    def make_world(self, name: str) -> Any:
        @contextlib.contextmanager
        def quiet() -> Iterator[dict[int, int]]:
            self.steps.append(f"turn of the {name}")
            try:
                yield {0: 3}
            finally:
                self.steps.append(f"no turn of the {name}")

        def gather(ranks: Any, asked: HoldReplies | AtRest, timeout_s: float) -> dict[int, Any]:
            if isinstance(asked, HoldReplies):
                self.steps.append("hold" if asked.is_on else "let go")
                return {}
            self.steps.append("look")
            return {rank: Event(rank, "reply", "", self.rest) for rank in ranks}

        return SimpleNamespace(
            cluster=self,
            dead={},
            own_cells={4},
            is_over=False,
            turns=SimpleNamespace(quiet=quiet, last_cells=dict),
            link=SimpleNamespace(ranks=[0], gather=gather),
            end_hung=lambda check: None,
            record=SimpleNamespace(last_seq=0),
        )

    def check_returns(self) -> None: ...

    def respawn(self, say: Any, watch: Any) -> None:
        self.steps.append("end")
        self.world.is_over = True
        self.world = self.make_world("new")
        watch(None)

    def equip(self) -> None:
        self.steps.append("equip")


class Saved(Kept):
    def looked_at(self) -> Kept:
        return self


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(world: Any, cells: Any, last: Any, *more: Any) -> Any:
        cluster = world.cluster
        cluster.steps.append(f"save {last}")
        if cluster.fails:
            raise RecoveryError("rank 0 could not be saved")
        folder: Any = SimpleNamespace(remove=lambda: None)
        return Saved(folder, {0: SaveReport()}, False, {}, 1)

    def restore(world: Any, *more: Any) -> restart.Restored:
        world.cluster.steps.append("restore")
        return restart.Restored((), notes=world.cluster.kept.notes)

    monkeypatch.setattr(restart, "save", save)
    monkeypatch.setattr(restart, "restore", restore)


def replace(cluster: Cluster) -> None:
    respawn.Respawn(cluster)._replace(lambda line: None)  # type: ignore[arg-type]


def test_it_has_the_turn_but_while_there_are_no_ranks(asked: None) -> None:
    """The old ones' until they have ended, and the new ones' until they have the variables."""
    replace(cluster := Cluster())
    assert cluster.steps == [
        *("turn of the old", "hold", "save {0: 3}", "look", "end", "no turn of the old"),
        *("turn of the new", "equip", "restore", "no turn of the new"),
    ]


def test_replies_go_on_where_nothing_was_ended(asked: None) -> None:
    cluster = Cluster(fails=True)
    with pytest.raises(RecoveryError):
        replace(cluster)
    assert cluster.steps == [
        *("turn of the old", "hold", "save {0: 3}", "let go", "no turn of the old")
    ]


@pytest.mark.parametrize(("seq", "is_told"), [(3, True), (4, False)], ids=["another's", "own"])
def test_a_cell_that_nobody_settles_any_more_is_told_of(
    asked: None, seq: int, is_told: bool
) -> None:
    cluster = Cluster()
    cluster.rest = Rest(True, seq, {}, {seq: CellEnd("interrupted")})
    replace(cluster)
    assert (respawn.ENDED_UNLIKE in cluster.recovered) is is_told
