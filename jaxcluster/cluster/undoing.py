"""Takes the last cell back, on all the ranks that ran it or on none.

Each rank keeps what was before its last cell (``engine.undo``). It is asked first what taking it
back would come to, and told to do so only once all have answered that they can: no rank is left in
another generation than the others. What one of them can't put back, none puts back, and it is
named. Meanwhile the cluster's lock is held, so that no notebook sends a cell in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxcluster.allocation.turns import Turns
from jaxcluster.errors import NoCluster, UsageError
from jaxcluster.ranks import name_ranks
from jaxcluster.wire.link import Event, Link

ANSWER_S = 5.0

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)


@dataclass(frozen=True)
class Undone:
    """What became of it; all names are those of any rank.

    Attributes:
      refused: why it was not done; "" where it was.
      back: names that are what they were: bound to their old values, or put back in place.
      made: names that the cell had made; they are unbound.
      lost: names whose old values were donated or deleted; they are unbound.
      failed: names whose values have changed in place and could not be put back.
      unknown: names whose values may have changed in place: what they are.
    """

    refused: str = ""
    back: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)

    def without(self, names: Iterable[str]) -> Undone:
        """The same, with nothing said of these names."""
        gone = set(names)

        def rest(found: Iterable[str]) -> tuple[str, ...]:
            return tuple(name for name in found if name not in gone)

        return Undone(
            self.refused,
            rest(self.back),
            rest(self.made),
            rest(self.lost),
            rest(self.failed),
            {name: self.unknown[name] for name in rest(self.unknown)},
        )

    def with_failed(self, names: Iterable[str]) -> Undone:
        """The same, with these names among those that could not be put back."""
        failed = {*self.failed, *names} - set(self.lost)
        return replace(self.without(failed), failed=tuple(sorted(failed)))

    def told(self, cell: str, assigned: Sequence[str] = ()) -> str:
        """In words. Where it was refused: that what the cell ``assigned`` is not to be trusted."""
        if self.refused:
            cell = cell[0].lower() + cell[1:]
            if not assigned:
                return f"What {cell} changed is not undone: {self.refused}."
            names = ", ".join(assigned)
            return f"Don't trust what {cell} assigned: {names} (not undone: {self.refused})."
        parts = []
        if self.back:
            one = len(self.back) == 1
            were = "is what it was" if one else "are what they were"
            parts.append(f"{', '.join(self.back)} {were} before it")
        if self.made:
            parts.append(f"{', '.join(self.made)} {_is(self.made)} unbound again")
        if not parts and not (self.lost or self.failed):
            parts = ["it had changed no variable"]
        text = f"{cell} is undone" + (f": {', '.join(parts)}." if parts else ".")
        if self.lost:
            text += f" Lost, since donated or deleted: {', '.join(self.lost)}."
        if self.failed:
            text += f" Changed in place and not put back: {', '.join(self.failed)}."
        if self.unknown:
            told = ", ".join(f"{name} ({what})" for name, what in self.unknown.items())
            text += f" Perhaps changed in place, and not put back: {told}."
        return text


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def undo(link: Link, turns: Turns, seq: int, number: int, ranks: Iterable[int]) -> Undone:
    """Take cell ``seq`` back on ``ranks``: those that were told to run it, and live.

    Its ``number`` is what people call it by.

    Takes milliseconds, and up to ``ANSWER_S`` where a rank does not answer. Whether their main
    threads still are in the cell does not matter.
    """
    ranks = list(ranks)
    try:
        with turns.quiet() as last:
            if any(last.get(rank, 0) > seq for rank in ranks):
                return Undone("another cell was sent since")
            return _undo(link, seq, number, ranks)
    except (NoCluster, OSError):
        return Undone("the cluster is stopped")


def _undo(link: Link, seq: int, number: int, ranks: Sequence[int]) -> Undone:
    answers = link.gather(ranks, "undo_look", {"seq": seq}, timeout_s=ANSWER_S)
    if why := _refusal(answers, ranks):
        return Undone(why)
    looks = [e.body for _, e in sorted(answers.items()) if e.op == "reply"]  # not of the dead
    plan = plan_of(looks)
    leave = sorted({*plan.failed, *(n for look in looks for n in look["too_large"])})
    lost = dict.fromkeys(plan.lost, f"was lost in cell [{number}] (donated or deleted)")
    body = {"seq": seq, "leave": leave, "lost": lost}
    answers = link.gather(ranks, "undo", body, timeout_s=ANSWER_S)
    if why := _refusal(answers, ranks):
        return Undone(why)
    replies = (event.body for event in answers.values() if event.op == "reply")
    failed = {name for body in replies for name in body["failed"]}
    return plan.with_failed(failed)


def _refusal(answers: Mapping[int, Event], ranks: Sequence[int]) -> str:
    """Why it can't be done, by the ranks' answers; "" if it can. The dead don't count."""
    whys: dict[str, list[int]] = {}
    for rank in ranks:
        event = answers.get(rank)
        if event is None:
            whys.setdefault("no answer", []).append(rank)
        elif event.op == "error":
            whys.setdefault(str(event.body["message"]), []).append(rank)
    if not whys and all(event.op == "died" for event in answers.values()):
        return "none of its ranks lives"
    return "; ".join(
        why if len(at) == len(ranks) else f"{name_ranks(at)}: {why}" for why, at in whys.items()
    )


def plan_of(looks: Sequence[Mapping[str, Any]]) -> Undone:
    """What taking a cell back comes to, by what each rank has said (``engine.undo.Undo.look``)."""

    def union(key: str) -> set[str]:
        return {name for look in looks for name in look[key]}

    lost, too_large = union("donated"), union("too_large")
    unknown = {name: what for look in looks for name, what in look["opaque"].items()}
    unknown |= dict.fromkeys(too_large, "too large to be watched")
    failed = union("failed") | (union("in_place") & too_large)
    plan = Undone(
        back=tuple(sorted((union("back") | (union("in_place") - too_large)) - lost)),
        made=tuple(sorted(union("made") - union("back") - lost)),
        lost=tuple(sorted(lost)),
        unknown={name: unknown[name] for name in sorted(unknown) if name not in lost},
    )
    return plan.with_failed(failed)


def parse_limit(word: str) -> int | None:
    """How many bytes of a device may be kept, as ``%jaxcluster undo`` is told: ``2GiB``, ``off``.

    None (``on``) is the default, a quarter of its memory.

    Raises:
      UsageError: it is not a size.
    """
    if word in ("on", "off"):
        return None if word == "on" else 0
    found = _SIZE.fullmatch(word)
    if found is None:
        raise UsageError(
            f"{word!r} is not a size.",
            "For example: %jaxcluster undo 2GiB. %jaxcluster undo on|off switches it, and "
            "%jaxcluster undo takes the last cell back.",
        )
    number, prefix, binary = found.groups()
    base = 1024 if binary or not prefix else 1000
    return int(float(number) * base ** " kmgt".index((prefix or " ").lower()))
