"""Copies of one thing that differ from rank to rank, as the ranks' hashes show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcluster import wire
from jaxcluster.ranks import by_value, name_ranks

SEED = (
    "np.random and random draw different numbers on each rank, as in scripts. For the same "
    "numbers on all ranks, first run `import jaxcluster; jaxcluster.seed(0)` in a cell."
)
MOST_LINES = 3
VERBS = {
    "given": "gave a program a {what} that is not the same on {ranks}: {groups}. Each rank "
    "computes with its own.",
    "made": "made a {what} whose copies differ on {ranks}: {groups}.",
    "read": "read a {what} whose copies differ on {ranks}: {groups}. Rank 0 shows its own.",
}


@dataclass(frozen=True)
class Odd:
    """Something of which ranks have different copies. ``groups``: ranks whose copies are equal.

    ``place``: cell and line.
    """

    kind: str
    place: tuple[int, int]
    what: str
    groups: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        ranks = sorted(rank for group in self.groups for rank in group)
        told = VERBS[self.kind].format(
            what=self.what, ranks=name_ranks(ranks), groups=tell_groups(self.groups)
        )
        cell, line = self.place
        return f"Cell [{cell}] line {line} {told}" if line else f"It {told}"


def tell_groups(groups: Sequence[Sequence[int]]) -> str:
    """Who has the same, and who has not."""
    if len(groups) > 2 and all(len(group) == 1 for group in groups):
        return "each has its own"
    return ", ".join(
        f"{name_ranks(group)} {'has' if len(group) == 1 else 'have'} {what}"
        for group, what in zip(groups, ["one", *["another"] * len(groups)], strict=False)
    )


def odd(notes: Mapping[int, Sequence[wire.CopyNote]]) -> list[Odd]:
    """What all ranks that share it have noted equally often, and not with equal hashes."""
    kept: dict[tuple[Any, ...], dict[int, tuple[int, str]]] = {}
    for rank, found in sorted(notes.items()):
        for note in found:
            key = (note.kind, (note.cell, note.line), note.what, note.processes)
            kept.setdefault(key, {})[rank] = (note.count, note.digest)
    return [
        Odd(kind, place, what, grouped({rank: digest for rank, (_, digest) in told.items()}))
        for (kind, place, what, processes), told in kept.items()
        if {str(rank) for rank in told} == set(processes.split(","))
        and len({count for count, _ in told.values()}) == 1
        and len({digest for _, digest in told.values()}) > 1
    ]


def grouped(values: Mapping[int, Any]) -> tuple[tuple[int, ...], ...]:
    """Ranks with equal values, the largest group first."""
    groups = by_value(values).values()
    return tuple(map(tuple, sorted(groups, key=lambda ranks: (-len(ranks), ranks))))


def tell(notes: Mapping[int, Sequence[wire.CopyNote]]) -> list[str]:
    """What is said under the cell: first what went in, since what came out follows from it."""
    found = sorted(odd(notes), key=lambda one: (one.kind == "read", one.place))
    if not found:
        return []
    more = len(found) - MOST_LINES
    lines = [str(one) for one in found[:MOST_LINES]]
    lines += [f"The same holds for {more} more."] if more > 0 else []
    return ["\n".join([*lines, SEED, ""])]


def parts(reports: Mapping[int, Sequence[Sequence[Any]]]) -> dict[int, tuple[tuple[int, ...], ...]]:
    """The leaves of which ranks have different copies: for each the ranks whose copies are equal.

    Args:
      reports: each rank's (leaf, part, hash).
    """
    kept: dict[tuple[int, str], dict[int, str]] = {}
    for rank, found in sorted(reports.items()):
        for leaf, part, digest in found:
            kept.setdefault((leaf, str(part)), {})[rank] = digest
    odd: dict[int, tuple[tuple[int, ...], ...]] = {}
    for (leaf, _), digests in kept.items():
        if len(set(digests.values())) > 1:
            odd.setdefault(leaf, grouped(digests))
    return odd
