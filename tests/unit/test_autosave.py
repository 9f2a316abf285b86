"""Saves of cells' ends: the last whole copy stays until the next one is complete."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jaxcluster.cluster.saving import Autosave, forget
from jaxcluster.errors import RecoveryError
from jaxcluster.wire.link import Event
from jaxcluster.wire.ops.saving import Saved, SavePlace


class World:
    """Ranks that save as they are told."""

    num_processes, is_broken, fails = 2, False, False

    def __init__(self) -> None:
        self.processes, self.removed = self, list[int]()
        self.made = 0

    def state_folder(self) -> Any:
        number = self.made = self.made + 1
        return SimpleNamespace(
            hint="",
            places_for=lambda rank: [SavePlace("/memory", 1000)],
            remove=lambda: self.removed.append(number),
        )

    def ask_in_turn(self, each: Any, *, timeout_s: float, check: Any) -> dict[int, Any]:
        if self.fails:
            raise RecoveryError("7 MiB found no room")
        check()
        return {rank: Event(rank, "reply", "", Saved("/memory")) for rank in each}


def test_the_last_whole_copy_is_kept_until_there_is_another() -> None:
    world, saves = World(), Autosave()
    saves.is_on = True

    def after(cell: int) -> tuple[int, str, list[int]]:
        saves.after(world, cell)  # type: ignore[arg-type]
        saves.wait()
        return saves.cell, saves.why_not, world.removed

    assert after(1) == (1, "", [])
    assert after(2) == (2, "", [1])
    world.fails = True
    assert after(3) == (2, "7 MiB found no room", [1, 3])
    world.fails, world.is_broken = False, True
    assert after(4)[0] == 2
    forget(saves)
    assert saves.kept is None
