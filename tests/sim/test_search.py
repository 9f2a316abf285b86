"""A search for schedules that break the promise, and faults that it has to find."""

from __future__ import annotations

import inspect
import os
import sys
from types import ModuleType

import pytest
from sim import simulator

from jaxcluster.agreement import cellqueue, referee

SCHEDULES = int(os.environ.get("JAXCLUSTER_SCHEDULES", "3000"))
FIRST = int(os.environ.get("JAXCLUSTER_FIRST_SCHEDULE", "0"))


@pytest.mark.parametrize("seed", [1231326, 1310712, 1323771, 1621639])
def test_rare_schedules_that_broke_a_property_once_are_clean(seed: int) -> None:
    """A search of ten million schedules found these."""
    simulator.play(seed)


def test_no_schedule_breaks_a_property() -> None:
    assert simulator.main(FIRST, SCHEDULES) == 0


# What each fault replaces in the core's source, and by what.
FAULTS: dict[str, list[tuple[str, str]]] = {
    "goes without the last rank": [
        (
            "if len(group) == len(program.processes)",
            "if len(group) >= max(2, len(program.processes) - 1)",
        )
    ],
    "ignores host values": [("Key(program, given,", "Key(program, 0,")],
    "ignores launches without collectives": [
        ("folded if covered else 0", "0"),
        ("odd := cell.odd_ones()", "odd := ()"),
    ],
    "ignores them at a cell's end": [("odd := cell.odd_ones()", "odd := ()")],
    "lets threads meet main flows": [("covered, name)\n", "covered, MAIN)\n")],
    "always grants a withdrawal": [
        (
            ".get(lane)) is None:\n            return []\n        refusal",
            '.get(lane)) is None:\n            gone = Refusal("left", (rank,))\n'
            '            return [Answer("refuse", rank, lane, 0, gone)]\n        refusal',
        )
    ],
    "leaving closes nothing": [("[] if wait.key.program.meets_all else", "[] if wait else")],
    "a refusal does not stick": [("self._closed[seq] = refusal\n", "pass\n")],
    "an error closes nothing": [('if outcome != "ok":', "if outcome == DIED:")],
    "a death is not noticed": [("if lane != BASE:", "if lane:")],
    "a death leaves its waits": [("if lane in (wait.lane, BASE)", "if lane == wait.lane")],
    "an early end is not noticed": [("for rank in cell.ended}", "for rank in ()}")],
    "circles are not noticed": [
        (
            "        kind: Kind =",
            "        if all(running[rank] for rank in idle): return None\n        kind: Kind =",
        )
    ],
    "waits for what waits": [
        ("return wait is None or wait.key in alive", "return True"),
    ],
    "takes who is in a rendezvous for lost": [
        ("wait.key in alive", 'wait.key in alive and wait.key.name == ""')
    ],
    "takes who works for lost": [
        ("if self.cells.running[rank] is not None or self._waits(rank)", "if self._waits(rank)")
    ],
    "blames the others": [
        ("tuple(sorted({*causes}))", "tuple(sorted(ranks - {*causes}))"),
    ],
    "a stop reaches one rank": [
        ("for rank in living]", 'for rank in living[: 1 if word == "closed" else None]]'),
        ("if w.seq == seq], refusal)", "if w.seq == seq][:1], refusal)"),
    ],
    "cells begin on whoever is free": [("cell.arrived != ranks", "not cell.arrived")],
    "cells of a notebook overtake": [("or self._is_behind(cell.spec)", "")],
    "cells begin beside others": [
        ("and not any(self.running[rank] for rank in ranks)", ""),
    ],
    "what is queued after a failed cell is run": [("Skipped(after=failed.seq)", "None")],
    "mixed turns are not told": [("(mixed := cell.mixed(", "(mixed := (lambda _: None)(")],
    "one turn too few is told": [("count - first) if", "count - first - 1) if")],
    "a torn launch is not noticed": [("            if others:\n", "            if False:\n")],
    "what XLA refused on all ranks is torn": [("may_say and not is_late", "False")],
    "counts go wrong": [("wait.lane, state.goes,", "wait.lane, max(1, state.goes - 1),")],
    "tells nobody else of threads": [("None, False, not state.lanes", "None, False, True")],
    "an end is over too early": [("if len(cell.ended) == len(", "if len(cell.ended) * 2 > len(")],
}


def made_again(module: ModuleType, changes: list[tuple[str, str]]) -> ModuleType:
    """A module with these parts of its source replaced, where it has them."""
    source = inspect.getsource(module)
    for old, new in changes:
        source = source.replace(old, new)
    made = ModuleType(module.__name__)
    sys.modules[module.__name__] = made
    exec(compile(source, module.__name__, "exec"), vars(made))
    return made


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_core_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = inspect.getsource(cellqueue) + inspect.getsource(referee)
    assert all(whole.count(old) >= 1 for old, _ in FAULTS[name]), "the core has changed"
    for module in (cellqueue, referee):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        core = made_again(module, FAULTS[name])
    monkeypatch.setattr(simulator, "core", core)
    for seed in range(4000):
        try:
            simulator.play(seed)
        except simulator.Broken:
            return
    pytest.fail("4,000 schedules did not find it")
