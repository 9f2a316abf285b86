"""Reads a profile that JAX has written, and makes of it what a notebook merges: tracks of slices.

A profile has millions of events, many of them of the profiler's own. So the notebook gets as many
as it asks for, the longest, with all collectives and steps.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxcluster import wire
from jaxcluster.wire.hlo import ANY_COLLECTIVE

COLLECTIVE = re.compile(rf"({ANY_COLLECTIVE})(-start)?(\.\d+)*")
NOISE = ("end: ", "ThreadpoolListener::", "Wait for donation", "Wait for usage")
MOST_LANES = 16  # of one track: what overlaps and is not nested stands below it
MOST_STEPS = 10_000
ENVIRONMENT, START = "Task Environment", "profile_start_time"
Names = Callable[[str], Collection[str]]  # of a module's operations that are collectives
_Slice = tuple[int, int, str, bool]  # start, nanoseconds, name, and whether it is always kept


class Unreadable(Exception):
    """A profile that can't be read."""

    hint = ""


@dataclass
class _Found:
    """What is found: slices by their tracks, and collectives.

    ``turns``: how often a device has had an operation in one run of its program.
    """

    tracks: dict[str, list[_Slice]] = field(default_factory=dict)
    operations: dict[tuple[str, str], int] = field(default_factory=dict)
    collectives: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    turns: dict[tuple[int, int, int], int] = field(default_factory=dict)
    steps: list[list[int]] = field(default_factory=list)


def read(
    path: str, rank: int, most: int, collectives: Names
) -> tuple[wire.ProfileTracks, list[bytes]]:
    """The profile at ``path`` as a message, and its columns.

    Args:
      most: how many slices, and how many collectives, are given at most.
      collectives: what a compiled program says of its operations' names.

    Raises:
      Unreadable: it is not a profile, or does not say when it began.
    """
    from jax.profiler import ProfileData

    if not os.path.exists(path):
        raise Unreadable("it has written no file.")
    try:
        planes = list(ProfileData.from_file(path).planes)
    except RuntimeError as error:
        raise Unreadable(f"{path} can't be read: {error}") from None
    began = next((dict(one.stats).get(START) for one in planes if one.name == ENVIRONMENT), None)
    if began is None:
        raise Unreadable(f"{path} does not say when it began.")
    # By the clock that all processes of a host have, and that nobody sets.
    offset = int(began) + time.monotonic_ns() - time.time_ns()
    found = _Found()
    on_devices = any(one.name.startswith("/device:") for one in planes)
    for plane in planes:
        tells = plane.name.startswith("/device:") or not on_devices
        for line in plane.lines:
            _read_line(found, plane.name, line, offset, collectives if tells else None)
    return _message(found, rank, most, os.path.getsize(path))


def _read_line(found: _Found, plane: str, line: Any, offset: int, known: Names | None) -> None:
    """One thread of the host, or one stream of a device.

    Args:
      known: None where another plane tells of the collectives.
    """
    own = "Python" if line.name == "python" else line.name.partition("/")[0]
    if plane.startswith("/device:"):
        own = f"{plane.removeprefix('/device:')} {line.name}"
    for event in line.events:
        nanos, name = int(event.duration_ns), event.name
        if nanos <= 0 or name.startswith(NOISE):
            continue
        start, stats = int(event.start_ns) + offset, dict(event.stats)
        track, is_kept = own, False
        if (op := stats.get("hlo_op")) is not None:
            module, device = str(stats.get("hlo_module", "")), stats.get("device_ordinal")
            if device is not None:
                track = f"device {device}"
            if known is not None and (op in known(module) or COLLECTIVE.fullmatch(op)):
                is_kept = True
                number = found.operations.setdefault((module, op), len(found.operations))
                of = number, int(stats.get("run_id", -1)), int(device or 0)
                turn = found.turns[of] = found.turns.get(of, -1) + 1
                found.collectives.append((*of, turn, start, start + nanos))
        if (step := stats.get("step_num")) is not None:
            is_kept, name = True, f"{name} {step}"
            if known is not None or own == "Python":
                found.steps.append([int(step), start, start + nanos])
        found.tracks.setdefault(track, []).append((start, nanos, name, is_kept))


def _lanes(slices: Sequence[_Slice]) -> Iterator[tuple[int, _Slice]]:
    """The slices with the lane that each is in; within one they are nested, or apart."""
    open_until: list[list[int]] = [[] for _ in range(MOST_LANES)]
    for one in sorted(slices, key=lambda each: (each[0], -each[1])):
        start, nanos, *_ = one
        for lane, ends in enumerate(open_until):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or start + nanos <= ends[-1]:
                ends.append(start + nanos)
                yield lane, one
                break


def _message(
    found: _Found, rank: int, most: int, nbytes: int
) -> tuple[wire.ProfileTracks, list[bytes]]:
    names: dict[str, int] = {}
    tracks: dict[str, int] = {}
    rows: list[tuple[int, int, int, int, bool]] = []
    for track, slices in sorted(found.tracks.items()):
        for lane, (start, nanos, name, is_kept) in _lanes(slices):
            shown = f"{track} ({lane + 1})" if lane else track
            at = tracks.setdefault(shown, len(tracks))
            rows.append((at, names.setdefault(name, len(names)), start, nanos, is_kept))
    table, shortest_ns = np.array(rows, np.int64).reshape(-1, 5), 0
    if len(table) > most:
        order = np.lexsort((-table[:, 3], -table[:, 4]))[:most]
        shortest_ns = int(table[order[-1], 3])
        table = table[np.sort(order)]
    runs = np.array(sorted(found.collectives, key=lambda one: one[4])[:most], np.int64)
    runs = runs.reshape(-1, 6)
    message = wire.ProfileTracks(
        rank=rank,
        nbytes=nbytes,
        names=list(names),
        tracks=list(tracks),
        operations=[list(one) for one in found.operations],
        steps=sorted(found.steps)[:MOST_STEPS],
        left_out=sum(map(len, found.tracks.values())) - len(table),
        shortest_ns=shortest_ns,
        uncounted=len(found.collectives) - len(runs),
    )
    columns = [*zip(table.T, wire.SLICE_COLUMNS, strict=False)]
    columns += zip(runs.T, wire.COLLECTIVE_COLUMNS, strict=True)
    return message, [column.astype(kind).tobytes() for column, kind in columns]
