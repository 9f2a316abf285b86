"""One expression's values on all ranks: which are equal. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from jaxcluster import wire
from jaxcluster.errors import UsageError
from jaxcluster.model import replicas
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import begin_ranks, by_value, name_ranks

_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")


@dataclass(frozen=True)
class Group:
    """Ranks with equal values. ``is_sure``: as their hashes say; else their texts alone."""

    ranks: tuple[int, ...]
    look: wire.ValueLook
    is_sure: bool


@dataclass(frozen=True)
class Compared:
    """What an expression is on each rank.

    Attributes:
      groups: in the order of each one's first rank.
      odd: sentences on copies of an array's parts that differ.
    """

    expression: str
    groups: tuple[Group, ...]
    odd: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether it is the same on all ranks, as far as that can be known."""
        return len(self.groups) == 1 and not self.odd

    @property
    def headline(self) -> str:
        """What came of it, in a sentence."""
        ranks = [rank for group in self.groups for rank in group.ranks]
        if len(self.groups) > 1:
            return f"{self.expression}: {len(self.groups)} different values on {len(ranks)} ranks."
        if len(ranks) == 1:
            return f"{self.expression}, on {name_ranks(ranks)}."
        (group,) = self.groups
        known = "" if group.is_sure else ", judging by its text alone"
        return f"{self.expression} is equal on {name_ranks(ranks)}{known}."

    def note(self, group: Group) -> str:
        """What is to be said below a group's text; "" for nothing."""
        cut = f"... {group.look.cut_chars:,} more characters." if group.look.cut_chars else ""
        same = [one for one in self.groups if one.look.text == group.look.text]
        if len(same) > 1:
            return f"{cut} The texts are equal, but the values differ.".strip()
        return cut


def check_expression(source: str) -> str:
    """The expression, in one piece.

    Raises:
      UsageError: it is not an expression.
    """
    source = source.strip()
    try:
        ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        what = f"{source[:80]!r} is not a Python expression" if source else "There is no expression"
        raise UsageError(f"{what}.", "For example: %jaxcluster compare params['w'].sum()") from None
    return source


def looks(record: CellRecord) -> dict[int, wire.ValueLook]:
    """What each rank has said of the value; where it is None, it has said nothing."""
    found = dict.fromkeys(record.ranks, wire.ValueLook("NoneType", "None", "=None"))
    for rank, one in record.records.items():
        for output in one.outputs():
            if (look := output.content.get("look")) is not None:
                found[rank] = wire.parse(wire.ValueLook, look)
    return found


def compare(expression: str, looks: Mapping[int, wire.ValueLook]) -> Compared:
    """Ranks with equal values together."""
    # Where a value can't be hashed its text has to do, but for where it lies in memory.
    groups = by_value(
        {
            rank: (look.type, bool(look.digest), look.digest or _ADDRESS.sub("0x", look.text))
            for rank, look in looks.items()
        }
    )
    found = tuple(
        Group(tuple(ranks), looks[ranks[0]], is_sure) for (_, is_sure, _), ranks in groups.items()
    )
    parts = replicas.parts({rank: look.copies for rank, look in looks.items()})
    odd = tuple(
        _tell_odd("it" if parts.keys() == {0} else f"leaf {leaf}", alike)
        for leaf, alike in sorted(parts.items())
    )
    return Compared(expression, found, odd if len(found) == 1 else ())


def _tell_odd(what: str, alike: tuple[tuple[int, ...], ...]) -> str:
    others = [rank for group in alike[1:] for rank in group]
    have = "has" if len(others) == 1 else "have"
    return f"{begin_ranks(others)} {have} other copies of {what} than {name_ranks(alike[0])}."
