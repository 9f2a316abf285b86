"""Ranks that answer what is asked at a cell's end, on a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxcluster import wire
from jaxcluster.lockstep import actions, events
from jaxcluster.lockstep.cell import Cell
from jaxcluster.lockstep.facts import Facts, Recovered, Replayed, Why
from jaxcluster.lockstep.settling import Settling, Steps
from jaxcluster.lockstep.states import State
from jaxcluster.lockstep.undone import Undone
from jaxcluster.model import findings
from jaxcluster.model.outputs import CellRecord

T0 = 1000.0
SEQ = 7
SET = "0,1"
EVEN = {SET: [1, 5]}
LESS: dict[str, list[int]] = {}
REPORT = findings.Report("missing", SET, 0, (1,), (0,), ("Rank 1 left it out.",), SEQ)
HANG = replace(REPORT, hopeless="they wait for each other")


class Ranks:
    """Answers, on a clock of its own, and takes down what is asked for.

    Attributes:
      facts: what is so.
      answers: by the class of what is asked: what comes of it.
    """

    def __init__(self, ranks: tuple[int, ...] = (0, 1), **facts: Any) -> None:
        self.facts = Facts(T0, ranks, **facts)
        self.counts: dict[int, Any] = {}
        self.launches = {0: EVEN, 1: EVEN}
        self.busy: set[int] = set()  # with a later cell
        self.met: dict[int, int] = {}  # whose the first launch was on each rank
        self.done: list[actions.Action] = []
        self.answers: dict[type, Callable[[Any], Any]] = {
            actions.LookAround: lambda _: self._now(),
            actions.Ask: self._look,
            actions.AskStates: lambda _: [self._state(rank) for rank in (0, 1)],
            actions.KeepCounts: self._keep,
            actions.BringBack: lambda _: Replayed("replayed", counts={0: EVEN, 1: EVEN}),
            actions.Undo: lambda _: Undone(made=("y",)),
            actions.TakeBackOthers: lambda it: events.TookBack(
                T0, tuple(f"{seq} is undone." for seq in sorted(it.cells, reverse=True))
            ),
            actions.Recover: lambda _: Recovered("New processes."),
            actions.Diverge: lambda it: self._set(divergence=it.report),
            actions.AskSilent: lambda it: {rank: Why("is stopped") for rank in it.ranks},
            actions.AskWhere: lambda it: events.Located(
                self.facts.now, it.ranks, {}, dict.fromkeys(it.ranks, "is not responding")
            ),
            actions.ReadLogEnd: lambda _: "",
            actions.Rest: lambda _: self._set(now=self.facts.now + 0.1),
        }

    def _set(self, **facts: Any) -> None:
        self.facts = replace(self.facts, **facts)

    def _now(self) -> Facts:
        self._set(now=self.facts.now + 0.001, counts=dict(self.counts))
        return self.facts

    def _keep(self, action: actions.KeepCounts) -> None:
        self.counts = {} if action.only else self.counts
        self.counts.update(action.counts)

    def _state(self, rank: int) -> wire.RankState:
        runs, now = ("running", SEQ + 1) if rank in self.busy else ("idle", SEQ)
        launches = self.launches[rank]
        return wire.RankState(
            rank, 9, "here", runs, seq=now, ended=SEQ, taken=now, launches=launches
        )

    def _look(self, ask: actions.Ask) -> events.Looked:
        reports = {
            rank: wire.RankReport(
                self._state(rank),
                [],
                [wire.Launch(0, SET, "f", 1, cell_seq=self.met[rank])] if self.met else [],
            )
            for rank in (0, 1)
        }
        facts = self._now()
        return events.Looked(facts.now, ask, reports, facts)

    def carry(self, steps: Steps[Any], until: type | None = None) -> Any:
        """Answer until it is over, or until it asks for this, which is where stop is pressed."""
        answer = None
        while True:
            try:
                action = steps.send(answer)
            except StopIteration as end:
                return end.value
            if until is not None and isinstance(action, until):
                raise KeyboardInterrupt
            self.done.append(action)
            answer = self.answers.get(type(action), lambda _: None)(action)

    def kinds(self) -> list[str]:
        """What was done, but for what only asks."""
        asks = (actions.LookAround, actions.Ask, actions.KeepCounts, actions.AskStates)
        return [type(one).__name__ for one in self.done if not isinstance(one, asks)]


def ended(
    launches: tuple[Any, Any] = (EVEN, EVEN), status: str = "ok", own: Any = None, **more: Any
) -> tuple[Cell, Settling]:
    """A cell whose ranks have replied; None: not that one."""
    made = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1]), T0 - 1)
    for rank, counts in enumerate(launches):
        if counts is not None:
            made_here = counts if own is None else own
            reply = wire.CellReply(rank, SEQ, status, 0.1, launches=counts, own=made_here, **more)
            made.feed(events.Replied(T0 - 0.5, reply))
    return made, Settling(made)


def given_up() -> Cell:
    """A cell that was stopped, and none of whose ranks has answered."""
    cell = Cell(CellRecord(SEQ, 3, "y = f(x)", [0, 1]), T0 - 20)
    cell.feed(events.Stopped(T0 - 10))
    cell.feed(events.Tick(T0))
    assert cell.silent == (0, 1)
    return cell


def states(cell: Cell) -> list[State]:
    return [state for _, state, _ in cell.course.story]
