"""Copies of one thing that differ from rank to rank, as the ranks' hashes show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from jaxcluster.ranks import name_ranks

H = TypeVar("H", int, tuple[int, int])
Groups = tuple[tuple[H, ...], ...]

SEED = (
    "np.random and random draw different numbers on each rank, as in scripts. For the same "
    "numbers on all ranks, first run `import jaxcluster; jaxcluster.seed(0)` in a cell."
)


def tell_groups(groups: Sequence[Sequence[int]]) -> str:
    """Who has the same, and who has not."""
    if len(groups) > 2 and all(len(group) == 1 for group in groups):
        return "each has its own"
    return ", ".join(
        f"{name_ranks(group)} {'has' if len(group) == 1 else 'have'} {what}"
        for group, what in zip(groups, ["one", *["another"] * len(groups)], strict=False)
    )


def grouped(values: Mapping[H, Any]) -> Groups[H]:
    """Holders of equal values together, the largest group first."""
    groups: dict[Any, list[H]] = {}
    for holder, value in sorted(values.items()):
        groups.setdefault(value, []).append(holder)
    return tuple(map(tuple, sorted(groups.values(), key=lambda held: (-len(held), held))))


def parts(reports: Mapping[int, Sequence[Sequence[Any]]]) -> dict[int, Groups[int]]:
    """The leaves of which ranks have different copies: for each the ranks whose copies are equal.

    Args:
      reports: each rank's (leaf, part, hash).
    """
    kept: dict[tuple[int, str], dict[int, str]] = {}
    for rank, found in sorted(reports.items()):
        for leaf, part, digest in found:
            kept.setdefault((leaf, str(part)), {})[rank] = digest
    odd: dict[int, Groups[int]] = {}
    for (leaf, _), digests in kept.items():
        if len(groups := grouped(digests)) > 1:
            odd.setdefault(leaf, groups)
    return odd
