"""Ranks that a person holds, in a debugger or by a question. Pure.

They, and those that wait for them, are neither hung nor diverged: no clock of a cell runs
(``health.Paused``), and nobody is interrupted for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jaxcluster import wire
from jaxcluster.ranks import say_each

DEBUGGER = "debugger"  # in which a rank may be held; the other is "input"


def kinds(states: Iterable[wire.RankState]) -> dict[int, str]:
    """The ranks that are held, and in what: ``debugger`` or ``input``."""
    return {state.rank: state.paused for state in states if state.paused}


def message(state: wire.RankState) -> str:
    """The rest of a sentence that begins with the rank: where and why it is held."""
    where = f"cell [{state.cell}]" + (f" line {state.line}" if state.line else "")
    if state.paused == "input":
        return f"waits for an answer to input(), in {where}"
    return f"is in the debugger, in {where}"


def note(state: wire.RankState) -> str:
    """What the panel says of it."""
    return "In the debugger." if state.paused == DEBUGGER else "Waits for an answer to input()."


def tell(held: Mapping[int, wire.RankState], hosts: Mapping[int, str] | None = None) -> list[str]:
    """A sentence for each place where ranks are that others wait for.

    Args:
      hosts: of the ranks, where there are several.
    """
    messages = {r: f"{message(state)} of another notebook" for r, state in held.items()}
    told = say_each(messages, "are held there, too", hosts)
    return [*told, f"Waiting for {'it' if len(held) == 1 else 'them'}."] if told else []
