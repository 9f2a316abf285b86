"""Ranks that say nothing: why, and their end if they will never say anything again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

from jaxcluster import wire
from jaxcluster.cluster.world import World
from jaxcluster.errors import LaunchError, RecoveryError
from jaxcluster.host import procfs
from jaxcluster.host.procfs import ProcessLook, Silence
from jaxcluster.ranks import name_ranks, say_each
from jaxcluster.wire.ops.status import State

PATIENCE_S = 5.0  # before a rank that says nothing counts as one that never will
ANSWER_S = 0.3  # that a control channel gets to answer what takes it microseconds


class Silences:
    """Says of silent ranks what the kernels of their hosts say of their processes."""

    def __init__(self, world: World) -> None:
        self._processes = world.processes
        self._first: dict[int, ProcessLook | None] = {}

    def why(self, ranks: Iterable[int]) -> dict[int, Silence]:
        """Why these ranks are silent, from the first look since they are so until now.

        What was seen of others is forgotten, since they have answered.
        """
        ranks = list(ranks)
        now = self._processes.look_at(ranks) if ranks else {}
        self._first = {rank: self._first.get(rank, look) for rank, look in now.items()}
        return {
            rank: procfs.explain(self._first[rank], now[rank])
            if rank in now
            else self._processes.why_unseen(rank)
            for rank in ranks
        }


def hung_ranks(world: World, check: Callable[[], None]) -> dict[int, Silence]:
    """Which ranks will never answer, and why: it is waited for ``PATIENCE_S`` for them.

    Args:
      check: called now and then; it may raise.
    """
    silences, deadline = Silences(world), time.monotonic() + PATIENCE_S
    silent = {rank for rank in range(world.num_processes) if rank not in world.dead}
    while silent := silent - set(world.link.gather(silent, State(), timeout_s=ANSWER_S)):
        check()
        whys = silences.why(sorted(silent))
        unsure = any(why.may_pass for why in whys.values())
        if time.monotonic() > deadline and not unsure:
            return {rank: why for rank, why in whys.items() if why.is_hung}
    return {}


def end_hung(world: World, check: Callable[[], None]) -> None:
    """Kill the ranks that can't even be asked to save their variables.

    Takes 5 s where there is one that may still answer.

    Args:
      check: called now and then; it may raise to end this before any is killed.

    Raises:
      RecoveryError: one is stopped, or held by a debugger. None is killed.
    """
    hung = hung_ranks(world, check)
    if held := {rank: why.message for rank, why in hung.items() if why.may_go_on}:
        told = " ".join(say_each(held, "do not answer either"))
        raise RecoveryError(
            f"{told} So the variables of {name_ranks(held)} can't be saved, and nothing was "
            "ended or lost.",
            "Let it go on, and then try again.\n"
            "%jaxcluster restart --clean ends it, and gives you empty ranks.",
        )
    for rank, why in hung.items():
        world.mark_dead(rank, wire.Death(f"ended by jaxcluster: it {why.message}"))
        with contextlib.suppress(LaunchError):
            world.processes.kill(rank)


def tell(whys: Mapping[int, Silence]) -> list[str]:
    """Why ranks are silent, a sentence for each reason that is known, and what to type."""
    messages = {}
    for rank, why in whys.items():
        if why.kind in ("starved", "cut") or why.may_pass or why.may_go_on:
            messages[rank] = why.message
        elif why.kind != "unknown":
            messages[rank] = f"{why.message}; %jaxcluster restart replaces it"
    return say_each(messages, "do not answer either")
