"""A search for schedules that break the promise, and faults that it has to find."""

from __future__ import annotations

import inspect
import os
import sys
from types import ModuleType

import pytest
from sim import simulator

from jaxcluster.agreement import referee

SCHEDULES = int(os.environ.get("JAXCLUSTER_SCHEDULES", "2000"))
FIRST = int(os.environ.get("JAXCLUSTER_FIRST_SCHEDULE", "0"))


@pytest.mark.parametrize("seed", [798936, 1231326, 1310712, 1323771, 1621639])
def test_rare_schedules_that_broke_a_property_once_are_clean(seed: int) -> None:
    """Searches of millions of schedules found these."""
    simulator.play(seed)


def test_no_schedule_breaks_a_property() -> None:
    assert simulator.main(FIRST, SCHEDULES) == 0


# What each fault replaces in the core's source, and by what.
FAULTS: dict[str, list[tuple[str, str]]] = {
    "goes without the last rank": [
        (
            "if len(lanes) == len(program.processes)",
            "if len(lanes) >= max(2, len(program.processes) - 1)",
        )
    ],
    "ignores host values": [("= program, given, folded", "= program, 0, folded")],
    "ignores launches without collectives": [
        ("folded if is_alike else 0", "0"),
        ("cell.refusal is None and odd", "False"),
    ],
    "ignores them at a cell's end": [("cell.refusal is None and odd", "False")],
    "ignores what they were given": [("odd = uneven or odd_ones", "odd = uneven and odd_ones")],
    "lets threads meet main flows": [("covered, name\n", "covered, MAIN\n")],
    "always grants a withdrawal": [
        (
            'self._refuse("left", (me.rank,), [me])\n',
            'self._refuse("left", (me.rank,), [me])\n        else:\n'
            '            me.tell("refuse", Refusal("left", (me.rank,)))\n',
        )
    ],
    "leaving closes nothing": [('if kind != "left" or one', 'if kind != "left" and one')],
    "a refusal does not stick": [("self._closed.get(me.seq)", "self._closed.get(-1)")],
    "an error closes nothing": [('if end.outcome != "ok":', "if end.outcome == DIED:")],
    "a death is not noticed": [("if me.name == BASE:\n", "if False:\n")],
    "a death leaves its waits": [("(self._mains[me.rank], *self._others[me.rank])", "()")],
    "an early end is not noticed": [("in self._running[seq].ended}", "in ()}")],
    "circles are not noticed": [
        (
            '        kind: Kind = "circle"',
            '        if all(main.seq for main in idle): return None\n        kind: Kind = "circle"',
        )
    ],
    "waits for what waits": [
        ("if any(main.waits and main.group not in alive for", "if any(False for"),
    ],
    "takes who is in a rendezvous for lost": [
        ("main.group not in alive for", 'not (main.group in alive and main.group.name == "") for')
    ],
    "takes who works for lost": [("if not (self._mains[rank].seq or self", "if not (self")],
    "blames the others": [
        ("tuple(sorted({*causes}))", "tuple(sorted(shown.keys() - {*causes}))"),
    ],
    "a stop reaches one rank": [
        ("for rank in living:\n", 'for rank in living[: 1 if word == "closed" else None]:\n'),
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
            "bool(odd_ones(living))",
            "any(living.values())",
        )
    ],
    "a thread's torn launch is not noticed": [("all(name == MAIN and", "all(True or")],
    "a cell of a dead rank is not skipped": [("return Skipped(dead=min(dead))", "pass")],
    "a cancelled cell is run": [("        if spec.seq in self._closed:", "        if False:")],
    "a stop closes one cell of several": [
        ("waits, self._running if seq is None", "[], [*self._running][:1] if seq is None"),
    ],
    "ranks without a cell are given up": [("elif not is_open:", "else:")],
    "counts go wrong": [("number if others[rank]", "max(1, number - 1) if others[rank]")],
    "tells nobody else of threads": [("number if others[rank] else 0", "0")],
    "an end is over too early": [("and len(self.ended) ==", "and len(self.ended) * 2 >")],
}


def made_again(changes: list[tuple[str, str]]) -> ModuleType:
    """The core with these parts of its source replaced."""
    source = inspect.getsource(referee)
    for old, new in changes:
        assert old in source, "the core has changed"
        source = source.replace(old, new)
    made = ModuleType(referee.__name__)
    sys.modules[made.__name__] = made
    exec(compile(source, made.__name__, "exec"), vars(made))
    return made


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_core_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, referee.__name__, referee)
    monkeypatch.setattr(simulator, "core", made_again(FAULTS[name]))
    for seed in range(4000):
        try:
            simulator.play(seed)
        except Exception:  # or the core itself falls over it
            return
    pytest.fail("4,000 schedules did not find it")
