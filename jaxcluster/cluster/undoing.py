"""Takes the last cell back, on all the ranks that ran it or on none.

Each rank keeps what was before its last cell (``engine.undo``). It is asked first what taking it
back would come to, and told to do so only once all have answered that they can: no rank is left in
another generation than the others. What one of them can't put back, none puts back, and it is
named. Meanwhile the cluster's lock is held, so that no notebook sends a cell in between.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster.world import World
from jaxcluster.errors import NoCluster, UsageError
from jaxcluster.lockstep import actions
from jaxcluster.lockstep.undone import Undone, plan_of
from jaxcluster.ranks import by_value, name_ranks
from jaxcluster.wire.link import Event, Link, Sink, replies
from jaxcluster.wire.ops.lockstep import State
from jaxcluster.wire.ops.state import ALREADY_UNDONE, Undo, UndoDrop, UndoLook
from jaxcluster.wire.ops.values import Unbind

ANSWER_S = 5.0  # after a cell that went wrong, whose ranks may stand still
ASKED_FOR_S = 30.0  # by a person, who can wait for a machine that is busy
DECISION_S = 2.0  # from the last rank's answer until all have heard what is done
IN_FLIGHT_S = 0.5  # that a cell gets on its way from its notebook to a rank
LOOK_S = 0.02

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)


def undo(
    world: World,
    seq: int,
    number: int,
    asked: actions.Undo,
    *,
    looked: AbstractSet[int] = frozenset(),
    answer_s: float = ANSWER_S,
) -> Undone:
    """Take cell ``seq`` back on the ranks that were told to run it, and live.

    Its ``number`` is what people call it by. ``looked``: the seqs of looks at an error in the
    debugger, which may have been sent since.

    Takes milliseconds, some 2 s beside values that are too large to be watched, and up to twice
    ``answer_s`` where a rank does not answer. Whether their main threads still are in the cell does
    not matter.
    """
    undone = _undo_in_turn(world, seq, number, asked, looked, answer_s)
    if undone.refused in ("", ALREADY_UNDONE):
        world.hear_undo(seq, undone.in_doubt)
    return undone


def _undo_in_turn(
    world: World,
    seq: int,
    number: int,
    asked: actions.Undo,
    looked: AbstractSet[int],
    answer_s: float,
) -> Undone:
    link, ranks, holds_others = world.link, asked.ranks, asked.holds_others
    try:
        with world.turns.quiet() as last:
            later = {rank: last[rank] for rank in ranks if last.get(rank, 0) > seq}
            later = {rank: found for rank, found in later.items() if found not in looked}
            if later and not (holds_others and _are_held(link, seq, later)):
                return Undone("another cell has been sent since")
            return _undo(link, seq, number, asked, answer_s)
    except (NoCluster, OSError):
        # The first host is lost, or all are: nobody hands out a cell any more.
        if (why := _what_was_sent_since(link, seq, ranks, holds_others, answer_s)) is not None:
            return Undone(why)
        return _undo(link, seq, number, asked, answer_s)


def _what_was_sent_since(
    link: Link, seq: int, ranks: Sequence[int], holds_others: bool, answer_s: float
) -> str | None:
    """Why cell ``seq`` can't be taken back, by what has come to its ranks; None where it can."""
    time.sleep(IN_FLIGHT_S)
    answers = link.gather(ranks, State(), timeout_s=answer_s)
    states = replies(answers).values()
    if not states:
        return "the cluster is stopped"
    if silent := [rank for rank in ranks if rank not in answers]:  # one may have come to these
        return f"{name_ranks(silent)}: no answer within {answer_s:g} s ({_AGAIN})"
    for state in states:
        is_held = holds_others and bool(state.gate) and state.gate[0] <= seq
        if state.taken > seq or (state.queued and not is_held):
            return "another cell has been sent since"
    return None


def _are_held(link: Link, seq: int, later: Mapping[int, int]) -> bool:
    """Whether what was sent after cell ``seq`` waits for its end, or was taken from its queue.

    What is on its way to the ranks is waited for. Where such a cell has run, the rank says so.

    Args:
      later: the seq of the last cell that was sent to each of these ranks.
    """

    def is_held(state: wire.RankState) -> bool:
        if state.gate:
            return state.gate[0] <= seq
        return not state.queued and state.taken >= later[state.rank]

    deadline = time.monotonic() + IN_FLIGHT_S
    while True:
        states = replies(link.gather(later, State(), timeout_s=ANSWER_S)).values()
        if len(states) == len(later) and all(map(is_held, states)):
            return True
        if time.monotonic() > deadline or any(s.state != "idle" for s in states):
            return False
        time.sleep(LOOK_S)


def _undo(link: Link, seq: int, number: int, asked: actions.Undo, answer_s: float) -> Undone:
    try:
        # What can't be taken back waits on ranks that have answered, until all have.
        look = UndoLook(seq, answer_s + DECISION_S)
        answers = link.gather(asked.ranks, look, timeout_s=answer_s)
        return _undo_if_all_can(link, seq, number, asked, answer_s, answers)
    finally:
        link.request_each(dict.fromkeys(asked.ranks, UndoDrop()), sink=Sink())


def _undo_if_all_can(
    link: Link,
    seq: int,
    number: int,
    asked: actions.Undo,
    answer_s: float,
    answers: Mapping[int, Event[Any]],
) -> Undone:
    # Another notebook, or one that was ended in the midst of it, may have begun.
    ranks = [r for r in asked.ranks if not _is_undone(answers.get(r))] or asked.ranks
    if why := _refusal(answers, ranks, f"no answer within {answer_s:g} s ({_AGAIN})"):
        return Undone(why)
    looks = [look for _, look in sorted(replies(answers).items())]  # not of the dead
    plan = plan_of(looks)
    stays_but, changed = asked.stays_but, {*plan.lost, *plan.back, *plan.made}
    if stays_but is not None and plan.lost and changed - stays_but:
        return Undone(STAYS, plan.lost)
    leave = sorted({*plan.failed, *(n for look in looks for n in look.too_large)})
    lost = dict.fromkeys(plan.lost, f"was lost in cell [{number}] (donated or deleted)")
    done = link.gather(ranks, Undo(seq, leave, lost), timeout_s=answer_s)
    if lost and asked.unbegun:
        unbind = Unbind(list(lost), lost)
        link.request_each(dict.fromkeys(asked.unbegun, unbind), sink=Sink())
    if why := _refusal(done, ranks, f"no answer within {answer_s:g} s ({_LATER})"):
        return Undone(why)
    return plan.with_failed({name for names in replies(done).values() for name in names})


def _is_undone(event: Event[Any] | None) -> bool:
    return event is not None and event.op == "error" and event.why == ALREADY_UNDONE


STAYS = "its ranks have launched the same, and were stopped in the same place"
_AGAIN = "nothing was changed: try %jaxcluster undo again"
_LATER = "it will undo the cell when it can; the others have undone it"


def _refusal(answers: Mapping[int, Event[Any]], ranks: Sequence[int], silent: str) -> str:
    """Why it can't be done, by the ranks' answers; "" if it can. The dead don't count.

    Args:
      silent: what is said of those that have not answered.
    """
    found = {rank: answers.get(rank) for rank in ranks}
    whys = by_value(
        {
            rank: silent if event is None else event.why
            for rank, event in found.items()
            if event is None or event.op == "error"
        }
    )
    if not whys and all(event.op == "died" for event in answers.values()):
        return "all of its ranks have died"
    return "; ".join(
        why if len(at) == len(ranks) else f"{name_ranks(at)}: {why}" for why, at in whys.items()
    )


def parse_limit(word: str) -> int | None:
    """How many bytes may be kept, as ``%jaxcluster undo`` is told: ``2GiB``, ``off``.

    None (``on``) is the default, a quarter of a device's memory, or of what is free.

    Raises:
      UsageError: it is not a size.
    """
    if word in ("on", "off"):
        return None if word == "on" else 0
    found = _SIZE.fullmatch(word)
    if found is None:
        raise UsageError(
            f"{word!r} is not a size.",
            "For example: %jaxcluster undo 2GiB. %jaxcluster undo on|off turns it on or off, and "
            "%jaxcluster undo takes the last cell back.",
        )
    number, prefix, binary = found.groups()
    base = 1024 if binary or not prefix else 1000
    return int(float(number) * base ** " kmgt".index((prefix or " ").lower()))
