"""Asks the ranks whether they are in lockstep for real: equal counts are not believed alone.

The ranks, all idle, make one small program together (``engine/selfcheck``): sums over all devices
and over every communicator, with numbers that no check before had. They are right on all ranks
within a second, or the ranks have diverged, and get new processes.
"""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxcluster.model import lockstep
from jaxcluster.ranks import by_value, name_ranks
from jaxcluster.wire.link import Event, Link, Sink, replies, unwrap
from jaxcluster.wire.ops.lockstep import Busy, Checked, PrepareCheck, SelfCheck

PREPARE_S = 20.0  # to compile it, on all ranks at once
CHECK_S = 1.0
PATIENCE_S = 30.0  # for ranks that still compute what was launched before
SOON_S = 0.1  # within which it is done as a rule
BUSY = 0.3  # the part of the time from which on a rank counts as one that computes
NUMBERS = 1 << 17


@dataclass(frozen=True)
class Verdict:
    """``why`` the ranks are not in lockstep, "" if they are; ``counts``: their launches by then."""

    why: str
    counts: dict[int, lockstep.Counts] = field(default_factory=dict)


def prepare(link: Link) -> None:
    """Have the ranks compile the check while something else is waited for."""
    link.request_each(dict.fromkeys(link.ranks, PrepareCheck()), sink=Sink())


def verify(link: Link) -> Verdict:
    """Whether the ranks, which are idle, are in lockstep.

    Takes some 10 ms and, the first time for the communicators that there are, a tenth of a second
    more. A rank that still computes what was launched before is waited for.
    """
    ranks = link.ranks
    answers = link.gather(ranks, PrepareCheck(), timeout_s=PREPARE_S)
    if why := _fault(answers, ranks, f"was not ready within {PREPARE_S:g} s"):
        return Verdict(why)
    divisions = unwrap(answers[ranks[0]])
    asked = SelfCheck(divisions, random.randrange(NUMBERS), PATIENCE_S)
    checked = _gather_patiently(link, asked)
    if why := _fault(checked, ranks, f"did not end within {CHECK_S:g} s"):
        return Verdict(why)
    return Verdict("", {rank: one.launches for rank, one in replies(checked).items()})


def _gather_patiently(link: Link, request: SelfCheck) -> dict[int, Event[Checked]]:
    """The answers that came; none is waited for once no rank has computed for a while."""
    sink = Sink()
    found: dict[int, Event[Checked]] = {}
    asked = link.request_each(dict.fromkeys(link.ranks, request), sink=sink)
    started = looked = time.monotonic()
    before: dict[int, float] = {}
    try:
        while len(found) < len(asked):
            try:
                wait_s = CHECK_S / 2 if before else SOON_S
                event = sink.get(timeout=max(0.0, looked + wait_s - time.monotonic()))
                found[event.rank] = event
            except queue.Empty:
                now, busy = time.monotonic(), _busy(link)
                computing = any(busy[r] - before[r] > BUSY * (now - looked) for r in before)
                if now > started + (PATIENCE_S if computing else CHECK_S):
                    return found
                before, looked = busy, now
    finally:
        link.forget(asked)
    return found


def _busy(link: Link) -> dict[int, float]:
    """For how long each rank has computed since its start."""
    heard = replies(link.gather(link.ranks, Busy(), timeout_s=CHECK_S))
    return {rank: heard.get(rank, 0.0) for rank in link.ranks}


def _fault(answers: Mapping[int, Event[Any]], ranks: Iterable[int], late: str) -> str:
    """What was wrong on which ranks, as a sentence's end; "" if nothing was."""
    wrong: dict[int, str] = {}
    for rank in ranks:
        event = answers.get(rank)
        if event is None:
            wrong[rank] = late
        elif event.op != "reply":
            said = event.why.partition("\n")[0] or event.ename
            wrong[rank] = f"failed ({said[:200]})"
        elif isinstance(event.body, Checked) and not event.body.right:
            wrong[rank] = event.body.why
    told = [f"{how} on {name_ranks(where)}" for how, where in by_value(wrong).items()]
    return f"a sum over all devices {' and '.join(told)}" if told else ""
