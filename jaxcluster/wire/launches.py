"""Launches of programs that span processes: what ranks tell of each, and their rolling hash."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

OURS = -1  # the ``cell_seq`` of a launch that was a replay's or a check's
BROKEN_OFF = ", aborted"  # in the name of a launch whose program did not run to its end


@dataclass(frozen=True)
class Launch:
    """One launch of a multi-process program: the ``seq``-th of the set ``processes`` ("0,1").

    ``cell`` is the number of the cell whose line launched it, ``cell_seq`` the seq of the cell that
    ran then (0: none did, or it was launched on another thread than the cell's; or ``OURS``).
    ``collective`` says that it has collectives, or may have. ``within`` is the line that launched
    it where that is not the cell's own but a script's, a module's or a library's: "train.py line 3:
    x.sum()".
    """

    seq: int
    processes: str
    name: str
    fingerprint: int
    cell: int | None = None
    line: int | None = None
    signature: str = ""
    cell_seq: int = 0
    collective: bool = True
    within: str = ""


@dataclass(frozen=True)
class LaunchTimes:
    """When a rank has begun its last launches: rows of ``seq``, kind and time, oldest first.

    As in a ``PollReply``; the times are microseconds of a clock that all processes of a host have,
    ``now_us`` by it is when this was said.
    """

    rank: int
    now_us: int
    kinds: list[Launch]
    made: list[list[int]]


_COMPILED_BITS = 32


def fingerprint(source: int, compiled: int) -> int:
    """What tells programs apart: what was compiled (24 bits), and what came of it (32 bits)."""
    compiled &= (1 << _COMPILED_BITS) - 1
    return (source & 0xFFFFFF) << _COMPILED_BITS | (compiled or 1)


def compiling_fingerprint(source: int) -> int:
    """The same of a program that is still being compiled."""
    return (source & 0xFFFFFF) << _COMPILED_BITS


def is_compiling(launch: Launch | None) -> TypeGuard[Launch]:
    """Whether it is an announced launch, of which the program is still being compiled."""
    return launch is not None and not launch.fingerprint & ((1 << _COMPILED_BITS) - 1)


def is_of_source(launch: Launch, other: Launch) -> bool:
    """Whether two launches are of programs that were compiled from the same."""
    return launch.fingerprint >> _COMPILED_BITS == other.fingerprint >> _COMPILED_BITS


def unpacked(kinds: Sequence[Launch], made: Iterable[Sequence[int]]) -> list[Launch]:
    """The launches of which a ``PollReply`` has these."""
    others = [all_but_seq(kind) for kind in kinds]
    return [Launch(seq, *others[kind]) for seq, kind in made]


_after_seq = operator.attrgetter(*(one.name for one in fields(Launch)[1:]))


def all_but_seq(launch: Launch) -> tuple[Any, ...]:
    """The fields of a launch behind its first, in their order."""
    return _after_seq(launch)


HASH_MODULUS = (1 << 61) - 1
HASH_FACTOR = 1000003


CROSSING = "&"  # between two sets of processes that share some, where both count together


def crossing(processes: str, others: str) -> str:
    """The key in ``launches`` under which the programs of two sets are counted together."""
    return CROSSING.join(sorted((processes, others)))


def crossing_began(other: str, count: int) -> list[int]:
    """The count and hash of a pair of sets when one has its first launch.

    The other was at ``count`` then: another order begins at another place.
    """
    return [0, next_hash(count, int.from_bytes(other.encode(), "little"))]


def next_hash(value: int, fingerprint: int) -> int:
    """A journal's rolling hash after one more launch."""
    return (value * HASH_FACTOR + fingerprint) % HASH_MODULUS
