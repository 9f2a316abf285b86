"""A search for schedules that break the promise, and faults that it has to find."""

from __future__ import annotations

import inspect
import os
import sys
from types import ModuleType

import pytest
from sim import simulator

from jaxcluster.agreement import cells, referee

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
        ("folded ^ me.unmade", "me.unmade"),
        ("cell.refusal is None and odd", "False"),
    ],
    "ignores them at a cell's end": [("cell.refusal is None and odd", "False")],
    "lets threads meet main flows": [("covered, name)\n", "covered, MAIN)\n")],
    "always grants a withdrawal": [
        (
            'self._refuse("left", (rank,), [me])\n',
            'self._refuse("left", (rank,), [me])\n        else:\n'
            '            left = Refusal("left", (rank,))\n'
            '            self._answers.append(Answer("refuse", rank, lane, refusal=left))\n',
        )
    ],
    "leaving closes nothing": [('if kind != "left" or one', 'if kind != "left" and one')],
    "a refusal does not stick": [("self._closed.get(me.seq)", "self._closed.get(-1)")],
    "an error closes nothing": [('if end.outcome != "ok":', "if end.outcome == DIED:")],
    "a death is not noticed": [("        if lane == BASE:\n", "        if not lane:\n")],
    "a death leaves its waits": [("[*lanes] if lane == BASE", "[] if lane == BASE")],
    "an early end is not noticed": [("in self._running[seq].ended}", "in ()}")],
    "circles are not noticed": [
        (
            "        kind: Kind =",
            "        if all(main.seq for main in idle): return None\n        kind: Kind =",
        )
    ],
    "waits for what waits": [
        ("if any(main.waits and main.key not in alive for", "if any(False for"),
    ],
    "takes who is in a rendezvous for lost": [
        ("main.key not in alive for", 'not (main.key in alive and main.key.name == "") for')
    ],
    "takes who works for lost": [("if not (self._mains[rank].seq or self", "if not (self")],
    "blames the others": [
        ("tuple(sorted({*causes}))", "tuple(sorted(shown.keys() - {*causes}))"),
    ],
    "a stop reaches one rank": [
        ("for rank in living]", 'for rank in living[: 1 if word == "closed" else None]]'),
        ("for lane in self._waits():\n", "for lane in self._waits()[:1]:\n"),
    ],
    "cells begin on whoever is free": [("and len(cell.arrived) == len(spec.ranks)", "")],
    "cells of a notebook overtake": [("who = None if is_next else spec.owner", "who = 0")],
    "cells begin beside others": [
        ("or any(self._mains[rank].seq for rank in spec.ranks)", ""),
    ],
    "what is queued after a failed cell is run": [("Skipped(after=failed.seq)", "None")],
    "mixed turns are not told": [("next(filter(None, mixed), ())", "()")],
    "one turn too few is told": [("len(made) - first\n", "len(made) - first - 1\n")],
    "a torn launch is not noticed": [("if cell.is_torn", "if False")],
    "what XLA refused on all ranks is torn": [
        (
            "bool(odd_ones({rank: self.unmade[rank] for rank in living}))",
            "any(self.unmade.values())",
        )
    ],
    "a thread's torn launch is not noticed": [("all(name == MAIN and", "all(True or")],
    "a cell of a dead rank is not skipped": [("return Skipped(dead=min(dead))", "pass")],
    "a cancelled cell is run": [("        if spec.seq in self._closed:", "        if False:")],
    "a stop closes one cell of several": [
        ("waits, self._running if seq is None", "[], [*self._running][:1] if seq is None"),
    ],
    "ranks without a cell are given up": [("elif not is_open:", "else:")],
    "counts go wrong": [("number if has_threads", "max(1, number - 1) if has_threads")],
    "tells nobody else of threads": [("number if has_threads else 0", "0")],
    "an end is over too early": [("and len(self.ended) ==", "and len(self.ended) * 2 >")],
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
    whole = inspect.getsource(cells) + inspect.getsource(referee)
    assert all(whole.count(old) >= 1 for old, _ in FAULTS[name]), "the core has changed"
    for module in (cells, referee):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        core = made_again(module, FAULTS[name])
    monkeypatch.setattr(simulator, "core", core)
    for seed in range(4000):
        try:
            simulator.play(seed)
        except Exception:  # or the core itself falls over it
            return
    pytest.fail("4,000 schedules did not find it")
