"""Ranks as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Iterable


def format_ranks(ranks: Iterable[int]) -> str:
    """Ranks as people write them: ``0, 2-5``."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(
        str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs
    )


def name_ranks(ranks: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0, 2-5``."""
    ordered = sorted(set(ranks))
    return f"rank{'s' if len(ordered) != 1 else ''} {format_ranks(ordered)}"


def parse_ranks(text: str, num_processes: int) -> list[int]:
    """The ranks that ``0,2-3`` names.

    Raises:
      ValueError: it is no list of ranks, or one of them does not exist.
    """
    ranks: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ValueError(f"{text!r} is no list of ranks such as 0,2-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"{part!r} counts backwards: write {last}-{first}")
        if last >= num_processes:
            raise ValueError(
                f"there is no rank {last}: this cluster has ranks 0-{num_processes - 1}"
            )
        ranks.update(range(first, last + 1))
    return sorted(ranks)
