"""Saves of cells' ends: which copy is written, which one is kept, and when there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from jaxcluster.agreement.cellqueue import CellSpec
from jaxcluster.cluster.checkpoints import Autosave
from jaxcluster.errors import RecoveryError
from jaxcluster.wire.link import Event
from jaxcluster.wire.ops.saving import Checkpoint, Saved

TURN = CellSpec(1, (0, 1), "somebody", 0, is_foreground=False, is_skippable=False)


class Folder:
    hint = ""

    def __init__(self) -> None:
        self.removed = False

    def places_for(self, rank: int) -> list[tuple[str, int | None]]:
        return [("/memory", 1000), ("/disk", None)]

    def remove(self) -> None:
        self.removed = True


class World:
    """Ranks that save to the first place."""

    def __init__(self) -> None:
        self.num_processes, self.is_broken = 2, False
        self.processes, self.folder = self, Folder()
        self.asked: list[dict[int, Checkpoint]] = []

    def state_folder(self) -> Folder:
        self.folder = Folder()
        return self.folder

    def ask_in_turn(
        self, each: Mapping[int, Callable[[CellSpec], Any]], *, timeout_s: float, check: Any
    ) -> dict[int, Event[Any]]:
        requests = {rank: make(TURN) for rank, make in each.items()}
        self.asked.append(requests)
        check()
        folders = {rank: request.places[0].folder for rank, request in requests.items()}
        return {rank: Event(rank, "reply", "", Saved(path)) for rank, path in folders.items()}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def saves() -> Autosave:
    made = Autosave()
    made.is_on = True
    return made


def after(saves: Autosave, world: Any, cell: int) -> None:
    saves.after(world, cell)
    saves.wait()


def test_the_last_whole_copy_is_never_written_to(saves: Autosave, world: World) -> None:
    folders = []
    for cell in range(1, 4):
        after(saves, world, cell)
        assert saves.kept is not None and saves.cell == cell
        folders.append(world.folder)
    assert [folder.removed for folder in folders] == [True, True, False]
    world.is_broken = True
    after(saves, world, 4)
    assert saves.cell == 3


def test_what_fails_leaves_the_last_one(saves: Autosave, world: World) -> None:
    after(saves, world, 1)

    def fail(*args: Any, **options: Any) -> None:
        raise RecoveryError("7 MiB found no room")

    world.ask_in_turn = fail  # type: ignore[assignment, method-assign]
    after(saves, world, 2)
    assert (saves.cell, saves.why_not) == (1, "7 MiB found no room")
    assert world.folder.removed and saves.kept is not None
    saves.forget()
    assert saves.kept is None
