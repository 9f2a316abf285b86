"""Copies of one thing that differ from rank to rank, as the ranks' hashes show it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcluster.ranks import by_value, name_ranks

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


def grouped(values: Mapping[int, Any]) -> tuple[tuple[int, ...], ...]:
    """Ranks with equal values, the largest group first."""
    groups = by_value(values).values()
    return tuple(map(tuple, sorted(groups, key=lambda ranks: (-len(ranks), ranks))))


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
