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
        ("folded if is_alike else 0", "0"),
        ("cell.refusal is None and odd", "False"),
    ],
    "ignores them at a cell's end": [("cell.refusal is None and odd", "False")],
    "lets threads meet main flows": [("covered, name)\n", "covered, MAIN)\n")],
    "always grants a withdrawal": [
        (
            'self._refuse("left", (rank,), [wait])\n',
            'self._refuse("left", (rank,), [wait])\n        else:\n'
            '            left = Refusal("left", (rank,))\n'
            '            self._answers.append(Answer("refuse", rank, lane, refusal=left))\n',
        )
    ],
    "leaving closes nothing": [('if kind != "left" or not w.key', 'if kind != "left" and w.key')],
    "a refusal does not stick": [("self._closed.get(seq)", "self._closed.get(-1)")],
    "an error closes nothing": [('if end.outcome != "ok":', "if end.outcome == DIED:")],
    "a death is not noticed": [("        if lane == BASE:\n", "        if not lane:\n")],
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
        ("if self.cells.running[rank] is not None or MAIN in", "if MAIN in")
    ],
    "blames the others": [
        ("tuple(sorted({*causes}))", "tuple(sorted(ranks - {*causes}))"),
    ],
    "a stop reaches one rank": [
        ("for rank in living]", 'for rank in living[: 1 if word == "closed" else None]]'),
        ("for wait in self._all_waits():\n", "for wait in self._all_waits()[:1]:\n"),
    ],
    "cells begin on whoever is free": [("and len(cell.arrived) == len(spec.ranks)", "")],
    "cells of a notebook overtake": [("who = None if is_next else spec.owner", "who = 0")],
    "cells begin beside others": [
        ("or any(self.running[rank] for rank in spec.ranks)", ""),
    ],
    "what is queued after a failed cell is run": [("Skipped(after=failed.seq)", "None")],
    "mixed turns are not told": [("next(filter(None, mixed), ())", "()")],
    "one turn too few is told": [("len(made) - first\n", "len(made) - first - 1\n")],
    "a torn launch is not noticed": [("if cell.is_torn", "if False")],
    "what XLA refused on all ranks is torn": [
        ("return bool(odd_ones(unmade))", "return any(unmade.values())")
    ],
    "a thread's torn launch is not noticed": [
        ("others = {*processes} - refused", "others = set() - refused")
    ],
    "a cell of a dead rank is not skipped": [("return Skipped(dead=min(dead))", "pass")],
    "a cancelled cell is run": [("self._cancelled.append(seq)\n", "pass\n")],
    "a stop closes one cell of several": [
        ("waits=self._all_waits(), cells=self._running())", "cells=self._running()[:1])"),
    ],
    "ranks without a cell are given up": [
        ("return is_open if cell is None", "return False if cell is None")
    ],
    "counts go wrong": [("rank, lane, number if", "rank, lane, max(1, number - 1) if")],
    "tells nobody else of threads": [("number if self._threads[rank] else 0", "0")],
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
        except Exception:  # or the core itself falls over it
            return
    pytest.fail("4,000 schedules did not find it")
