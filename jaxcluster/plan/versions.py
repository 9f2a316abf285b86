"""Which releases of jax jaxcluster works with, and what to say of others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# The coordination service of jax 0.9.0 can't outlive the death of a rank, that of 0.9.1 can.
OLDEST_JAX = "0.9.1"
NEWEST_TRIED_JAX = "0.12"  # with all its patch releases
TRIED_JAX = 'pip install "jax>=0.9.1,<0.13"'


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``0.7.0.dev2025`` is (0, 7, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def too_old(jax: Iterable[str]) -> tuple[str, str] | None:
    """Why no cluster can start with one of these versions, and what to type; None where it can."""
    oldest = min(jax, key=release, default=OLDEST_JAX)
    if release(oldest) >= release(OLDEST_JAX):
        return None
    why = f"jax {oldest} is older than {OLDEST_JAX}, the oldest with which clusters start."
    return why, f'Try: pip install -U "jax>={OLDEST_JAX}"'


def note_on(jax: str, moved: Mapping[str, str]) -> str:
    """A note on this jax for a start; ``""`` if it was tried.

    Args:
      jax: its version.
      moved: what ``rank.private`` did not find in it, each with what happens without it.
    """
    told = list[str]()
    if release(jax)[:2] > release(NEWEST_TRIED_JAX):
        told.append(f"jax {jax} is newer than {NEWEST_TRIED_JAX}, the newest tried with jaxcluster")
    if moved:
        lost = "; ".join(f"{what} ({cost})" for what, cost in moved.items())
        told.append(f"jax {jax} has moved private names that jaxcluster uses: {lost}")
    return ". ".join(told)
