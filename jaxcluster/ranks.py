"""Ranks as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

H = TypeVar("H")

MOST_HOSTS = 4  # named with their ranks; more names would hide the message
MOST_GROUPS = 3  # groups of ranks in one line


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


def name_ranks(ranks: Iterable[int], hosts: Mapping[int, str] | None = None) -> str:
    """``rank 3`` or ``ranks 0, 2-5``; with hosts ``rank 3 (h2)`` or ``ranks 0, 1 (h1), 3 (h2)``.

    Args:
      hosts: what ``several_hosts`` gives.
    """
    ordered = sorted(set(ranks))
    there: dict[str, list[int]] = {}
    for rank in ordered:
        there.setdefault((hosts or {}).get(rank, ""), []).append(rank)
    if "" in there or len(there) > MOST_HOSTS:
        named = format_ranks(ordered)
    else:
        named = ", ".join(f"{format_ranks(own)} ({host})" for host, own in there.items())
    return f"rank{'s' if len(ordered) != 1 else ''} {named}"


def begin_ranks(ranks: Iterable[int], hosts: Mapping[int, str] | None = None) -> str:
    """As ``name_ranks``, at the beginning of a sentence: ``Rank 3 (h2)``."""
    return "R" + name_ranks(ranks, hosts)[1:]


def say(ranks: Sequence[int], does: str, hosts: Mapping[int, str] | None = None) -> str:
    """``Ranks 0, 1 are at work``: what ranks do, which begins with the verb for one of them."""
    verb, _, rest = does.partition(" ")
    verb = _OF_SEVERAL.get(verb, verb) if len(ranks) > 1 else verb
    return f"{begin_ranks(ranks, hosts)} {verb} {rest}"


_OF_SEVERAL = {"has": "have", "is": "are", "waits": "wait", "was": "were"}


def by_value(values: Mapping[int, H]) -> dict[H, list[int]]:
    """The ranks that have, or of which is said, the same; in the order of the first of each."""
    groups: dict[H, list[int]] = {}
    for rank in sorted(values):
        groups.setdefault(values[rank], []).append(rank)
    return groups


def tell_each(said: Mapping[int, str]) -> str:
    """Reasons of ranks, equal ones once: ``rank 0: this; ranks 1, 2: that``."""
    return "; ".join(f"{name_ranks(ranks)}: {what}" for what, ranks in by_value(said).items())


def say_each(messages: Mapping[int, str], rest: str) -> list[str]:
    """A sentence for each of the messages, which begin with a verb: ``Rank 3 is in C code.``

    Args:
      rest: said of all other ranks where there are many messages: ``do not answer either``.
    """
    groups, said = list(by_value(messages).items()), []
    whole = groups if len(groups) <= MOST_GROUPS else groups[: MOST_GROUPS - 1]
    for message, ranks in whole:
        said.append(f"{say(ranks, message)}.")
    others = [rank for _, ranks in groups[len(whole) :] for rank in ranks]
    return [*said, f"{begin_ranks(others)} {rest}."] if others else said


def several_hosts(names: Mapping[int, str]) -> dict[int, str]:
    """The host of each rank; nothing where all ranks are on one, which need not be said."""
    return dict(names) if len(set(names.values())) > 1 else {}


def name_hosts(names: Iterable[str]) -> str:
    """``h1``, ``h1, h2``; of many ``h1 and 15 more``."""
    first, *others = dict.fromkeys(names)
    return (
        ", ".join([first, *others])
        if len(others) < MOST_HOSTS
        else f"{first} and {len(others)} more"
    )


def parse_ranks(text: str, num_processes: int) -> list[int]:
    """The ranks that ``0,2-3`` names.

    Raises:
      ValueError: it is not a list of ranks, or one of them does not exist.
    """
    ranks: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ValueError(f"{text!r} is not a list of ranks such as 0,2-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"{part!r} counts backwards: write {last}-{first}")
        if last >= num_processes:
            raise ValueError(
                f"There is no rank {last}: this cluster has ranks 0-{num_processes - 1}"
            )
        ranks.update(range(first, last + 1))
    return sorted(ranks)
