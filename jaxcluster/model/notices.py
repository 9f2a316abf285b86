"""Notices: lines under a cell besides its ranks' output, and words for dead ranks. Pure.

A notice is no error, and is not shown as one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from jaxcluster.ranks import begin_ranks, by_value
from jaxcluster.wire.forks import MEANT


class ClusterWarning(UserWarning):
    """A warning about a cluster or a value, for a process that shows no notices."""


def warn(text: str) -> None:
    """Have Python warn of it, of no line: none of ours would tell its reader anything.

    Raises:
      ClusterWarning: a filter makes an error of it.
    """
    warnings.warn_explicit(text.rstrip(), ClusterWarning, "jaxcluster", 1)


def tell_deaths(died: Mapping[int, str], hosts: Mapping[int, str] | None = None) -> list[str]:
    """A line for the ranks that have died so; and that a person has ended the others."""
    lines = [
        f"{begin_ranks(ranks, hosts)} died: {why}."
        for why, ranks in by_value(died).items()
        if why not in MEANT
    ]
    ended = [why for why in MEANT if why in died.values()]
    return [*lines, *(f"{why.capitalize()}." for why in ended[:1])]
