"""A search for schedules that break the promise, and faults that it has to find."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from sim import simulator

from jaxcluster.agreement import cellqueue, referee
from jaxcluster.agreement.cellqueue import Answer
from jaxcluster.agreement.referee import Referee
from jaxcluster.agreement.refusals import Refusal

SCHEDULES = int(os.environ.get("JAXCLUSTER_SCHEDULES", "3000"))
FIRST = int(os.environ.get("JAXCLUSTER_FIRST_SCHEDULE", "0"))


@pytest.mark.parametrize("seed", [1231326, 1310712, 1323771, 1621639])
def test_rare_schedules_that_broke_a_property_once_are_clean(seed: int) -> None:
    """A search of ten million schedules found these."""
    simulator.play(seed)


def test_no_schedule_breaks_a_property() -> None:
    assert simulator.main(FIRST, SCHEDULES) == 0


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> tuple[Any, str, Any]:
    return owner, name, make(getattr(owner, name))


def go_without_the_last(original: Any) -> Any:
    def launch(self: Referee, rank: int, lane: str, program: Any, **more: Any) -> Any:
        answers = original(self, rank, lane, program, **more)
        for group in list(self._groups.values()):
            size = len(next(iter(group.values())).key.program.processes)
            if not answers and size > 2 and len(group) == size - 1:
                return self._go(group, [*group.values()][-1])
        return answers

    return launch


def without_first_argument_changed(change: Callable[..., dict[str, Any]]) -> Any:
    def make(original: Any) -> Any:
        def launch(self: Any, rank: int, lane: str, program: Any, **more: Any) -> Any:
            return original(self, rank, lane, program, **{**more, **change(**more)})

        return launch

    return make


def keys_with(**fields: Any) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def key(program: Any, given: int, folded: int, seq: int, name: str) -> Any:
            return original(program, given, folded, seq, name)._replace(**fields)

        return key

    return make


def nothing(original: Any) -> Any:
    return lambda self, *args, **more: []


FAULTS: dict[str, list[tuple[Any, str, Callable[[Any], Any]]]] = {
    "goes without the last rank": [(Referee, "launch", go_without_the_last)],
    "ignores host values": [
        (Referee, "launch", without_first_argument_changed(lambda **more: {"given": 0}))
    ],
    "ignores launches without collectives": [
        (Referee, "launch", without_first_argument_changed(lambda **more: {"folded": 0})),
        (cellqueue.Cell, "odd_ones", nothing),
    ],
    "lets threads meet main flows": [(referee, "Key", keys_with(name=""))],
    "always grants a withdrawal": [
        (
            Referee,
            "withdraw",
            lambda original: (
                lambda self, rank, lane: (
                    original(self, rank, lane)
                    or [Answer("refuse", rank, lane, 0, Refusal("left", (rank,)))]
                )
            ),
        )
    ],
    "leaving closes nothing": [(Referee, "withdraw", lambda original: _leave)],
    "a refusal does not stick": [
        (
            Referee,
            "_close",
            lambda original: lambda self, seq, refusal: _close_once(original, self, seq, refusal),
        )
    ],
    "an error closes nothing": [
        (
            Referee,
            "end",
            lambda original: (
                lambda self, rank, outcome, folded=None: original(self, rank, "ok", folded)
            ),
        )
    ],
    "a death is not noticed": [
        (
            Referee,
            "gone",
            lambda original: (
                lambda self, rank, lane: [] if lane == "base" else original(self, rank, lane)
            ),
        )
    ],
    "an early end is not noticed": [
        (Referee, "_ended_without", lambda original: lambda self, key: set())
    ],
    "circles are not noticed": [
        (
            Referee,
            "_verdict",
            lambda original: (
                lambda self, *args: (
                    verdict
                    if (verdict := original(self, *args)) and verdict[0] != "circle"
                    else None
                )
            ),
        )
    ],
    "waits for what waits": [
        (Referee, "_may_come", lambda original: lambda self, rank, alive, is_open: True)
    ],
    "takes who is in a rendezvous for lost": [
        (
            Referee,
            "_may_go_on",
            lambda original: (
                lambda self, rank, alive: (
                    (w := self._waits(rank)) is None or (w.key in alive and w.key.name == "")
                )
            ),
        )
    ],
    "takes who works for lost": [
        (
            Referee,
            "_may_come",
            lambda original: (
                lambda self, rank, alive, is_open: (
                    (original(self, rank, alive, is_open) and self.cells.running[rank] is None)
                    or ((w := self._waits(rank)) is not None and w.key in alive)
                )
            ),
        )
    ],
    "blames the others": [
        (
            Referee,
            "_verdict",
            lambda original: (
                lambda self, *args: (
                    (found[0], {*range(len(self._ranks))} - {*found[1]}, found[2])
                    if (found := original(self, *args))
                    else None
                )
            ),
        )
    ],
    "a stop reaches one rank": [
        (Referee, "stop", lambda original: lambda self, seq=None: original(self, seq)[:1])
    ],
    "cells begin on whoever is free": [
        (
            cellqueue.CellQueue,
            "arrive",
            lambda original: (
                lambda self, rank, spec: [
                    *(original(self, one, spec) for one in spec.ranks if one != rank),
                    original(self, rank, spec),
                ][-1]
            ),
        )
    ],
    "cells of a notebook overtake": [
        (cellqueue.CellQueue, "_is_behind", lambda original: lambda self, cell: False)
    ],
    "cells begin beside others": [
        (
            cellqueue.CellQueue,
            "step",
            lambda original: lambda self: _begin_all(original, self),
        )
    ],
    "what is queued after a failed cell is run": [
        (cellqueue.CellQueue, "_why_skip", lambda original: lambda *args: _skip(original(*args)))
    ],
    "mixed turns are not told": [
        (cellqueue.Cell, "mixed", lambda original: lambda self, awaited: None)
    ],
    "a torn launch is not noticed": [(Referee, "_tear", nothing)],
    "what XLA refused on all ranks is torn": [
        (
            Referee,
            "_tear",
            lambda original: (
                lambda self, *late: [rank.made.clear() for rank in self._ranks] and original(self)
            ),
        )
    ],
    "counts go wrong": [
        (
            referee,
            "Answer",
            lambda original: (
                lambda word, rank, lane, number=0, why=None, **more: original(
                    word, rank, lane, max(1, number - 1) if word == "go" else number, why, **more
                )
            ),
        )
    ],
}


def _leave(self: Referee, rank: int, lane: str) -> list[Any]:
    wait = self._ranks[rank].waits.get(lane)
    if wait is None:
        return []
    self._forget(wait)
    return [Answer("refuse", rank, lane, 0, Refusal("left", (rank,)))]


def _close_once(original: Any, self: Referee, seq: int, refusal: Any) -> Any:
    answers = original(self, seq, refusal)
    self._closed.pop(seq, None)
    return answers


def _skip(why: Any) -> Any:
    return None if why is not None and why.after else why


def _begin_all(original: Any, self: Any) -> list[Any]:
    before, self.running = self.running, [None] * len(self.running)
    answers = original(self)
    self.running = [new or old for new, old in zip(self.running, before, strict=True)]
    return list(answers)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_core_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, attribute, make in FAULTS[name]:
        original = vars(owner)[attribute] if isinstance(owner, type) else getattr(owner, attribute)
        monkeypatch.setattr(owner, attribute, make(original))
    for seed in range(4000):
        try:
            simulator.play(seed)
        except simulator.Broken:
            return
    pytest.fail("4,000 schedules did not find it")
