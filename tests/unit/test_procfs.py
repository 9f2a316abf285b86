"""Why a process says nothing, from what its kernel says of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.cluster import world as worlds
from jaxcluster.cluster.world import tell_silences as tell
from jaxcluster.errors import RecoveryError
from jaxcluster.host.procfs import CONTROL_COMM, ProcessLook, Silence, ThreadLook, explain

PID, CONTROL, POOL = 800, 801, 802


def seen(at: float, **threads: tuple[str, float, float] | tuple[str, float, float, int]):
    """Each thread as (state, seconds on a processor, seconds without one, turns on one)."""
    tids = {"main": PID, "control": CONTROL, "pool": POOL}
    names = {"main": "python", "control": CONTROL_COMM, "pool": "xla-pool"}
    idle = {"main": ("S", 5.0, 1.0), "control": ("S", 0.1, 0.1), "pool": ("S", 3.0, 1.0)}
    return ProcessLook(
        PID, at, {tids[n]: ThreadLook(names[n], *s) for n, s in (idle | threads).items()}
    )


BEFORE = seen(100.0)


def why(at: float = 103.0, **threads: tuple[str, float, float] | tuple[str, float, float, int]):
    return explain(BEFORE, seen(at, **threads))


def test_only_a_stopped_process_was_stopped_by_a_signal() -> None:
    found = explain(None, seen(100.0, main=("T", 5.0, 1.0)))
    assert (found.kind, found.is_hung) == ("stopped", True)
    stopped = "was stopped by a signal (`kill -CONT 800` lets its process go on)."
    assert tell({1: found}) == [f"Rank 1 {stopped}"]
    assert tell(dict.fromkeys(range(256), found)) == [f"Ranks 0-255 were{stopped[3:]}"]
    many = {r: replace(found, message=f"was stopped (pid {r})") for r in range(256)}
    assert tell(many)[-1] == "Ranks 2-255 do not answer either."
    assert len(tell(many)) == 3
    assert explain(None, seen(100.0, main=("t", 5.0, 1.0))).kind == "traced"
    for state in "SRD":
        assert explain(BEFORE, seen(103.0, main=(state, 6.0, 2.0))).kind != "stopped"


def test_a_held_process_is_never_ended_unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has is still there; one that keeps the GIL for good has nothing that can be had."""
    ended: list[int] = []
    silent = SimpleNamespace(gather=lambda *_, **more: [0])
    world: Any = SimpleNamespace(
        mark_dead=lambda rank, why: None, processes=SimpleNamespace(kill=ended.append),
        link=silent, num_processes=3, dead={},
    )  # fmt: skip
    monkeypatch.setattr(worlds, "PATIENCE_S", 0.0)
    keeps = Silence("lock", "is in C code that keeps Python's global lock")
    held = explain(None, seen(100.0, main=("T", 5.0, 1.0)))
    traced = explain(None, seen(100.0, main=("t", 5.0, 1.0)))
    for found in (held, traced):
        monkeypatch.setattr(worlds, "why_silent", lambda *_, one=found: {1: one, 2: keeps})
        with pytest.raises(
            RecoveryError, match=r"^Rank 1 (was stopped by a signal|is held by)"
        ) as e:
            worlds.end_hung(world, lambda: None)
        assert "So the variables of rank 1 can't be saved, and nothing was ended" in str(e.value)
        assert "%jaxcluster restart --clean" in e.value.hint
    assert not ended
    unknown = Silence("unknown", "")
    monkeypatch.setattr(worlds, "why_silent", lambda *_: {1: unknown, 2: keeps})
    worlds.end_hung(world, lambda: None)
    assert ended == [2]


def test_a_process_whose_control_channel_gets_no_processor_is_starved_and_waited_for() -> None:
    found = why(control=("R", 0.11, 3.0, 2), main=("R", 5.4, 3.4, 9))
    assert (found.kind, found.is_hung) == ("starved", False)
    assert "restart" not in tell({2: found})[0]


def test_a_thread_that_computes_while_the_control_channels_looks_for_the_lock_keeps_it() -> None:
    looks = ("S", 0.11, 0.2, 400)
    found = why(main=("R", 7.9, 1.1, 50), control=looks)
    assert (found.kind, found.is_hung) == ("lock", True)
    assert "its main thread computed, and" in found.message
    found = why(pool=("R", 5.9, 1.0, 50), main=("S", 5.0, 1.0, 50), control=looks)
    assert "its thread 'xla-pool' computed" in found.message


def test_one_that_gets_little_of_a_busy_machine_is_not_called_hung_for_one_long_call() -> None:
    """0.2 s of computing took 5 s at a load of 23, and the rank was ended."""
    slowed = why(105.0, main=("R", 5.2, 5.8), control=("S", 0.2, 0.3, 50))
    assert (slowed.kind, slowed.is_hung) == ("lock", False)
    assert slowed.message.endswith("(the machine is busy; still waiting)")
    late = why(160.0, main=("R", 7.2, 58.8), control=("S", 0.2, 0.3, 50))
    assert (late.kind, late.is_hung) == ("lock", True)


def test_a_process_without_a_control_thread_runs_another_program() -> None:
    def sleeps(at: float) -> ProcessLook:
        return ProcessLook(PID, at, {PID: ThreadLook("sleep", "S", 0.1, 0.0)})

    found = explain(sleeps(100.0), sleeps(103.0))
    assert (found.kind, found.is_hung) == ("other", True)
    assert tell({1: found}) == [
        "Rank 1 is no longer a rank: its process runs another program, 'sleep' (pid 800), as after "
        "os.execv; %jaxcluster restart gives new processes."
    ]
    # A process that ends loses one thread after another.
    assert explain(BEFORE, sleeps(103.0)).kind != "other"
    assert explain(sleeps(100.0), seen(103.0)).kind != "other"
