"""What is said under a cell besides the output of its ranks, and of ranks that have ended. Pure.

A notice is no error, and is not shown as one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from jaxcluster.wire.forks import RESTARTED, STOPPED


class ClusterWarning(UserWarning):
    """What went wrong without an error of the cell's, where its notices are not shown."""


def warn(text: str) -> None:
    """Have Python warn of it, of no line: none of ours would tell its reader anything.

    Raises:
      ClusterWarning: a filter makes an error of it.
    """
    warnings.warn_explicit(text.rstrip(), ClusterWarning, "jaxcluster", 1)


class Passing(str):
    """A notice that is true for a while: the next one takes its place, and the cell's end its."""


def meant(whys: Iterable[str]) -> str:
    """Why processes have ended that a person has ended; "" where none has."""
    found = {*whys}
    return next((why for why in (STOPPED, RESTARTED) if why in found), "")


def tell_deaths(died: Mapping[int, str]) -> list[str]:
    """A line for each rank that has died; and that a person has ended the others."""
    lines = [f"Rank {r} died: {why}." for r, why in sorted(died.items()) if not meant([why])]
    why = meant(died.values())
    return [*lines, f"{why.capitalize()}."] if why else lines
