"""Writes a trace for Perfetto: processes with tracks, and slices on them. Pure.

The format is protobuf, ``perfetto/protos/perfetto/trace/trace_packet.proto``. All packets of slices
have the same bytes at the same places, since numbers may be written longer than they have to be:
so numpy makes a million of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

BEGIN, END, INSTANT = 1, 2, 3  # TrackEvent.Type
CLEARED, NEEDS_NAMES = 1, 2  # TracePacket.SequenceFlags
_WIDTHS = {"time": 8, "sequence": 2, "track": 4, "name": 4}  # bytes of these numbers


@dataclass(frozen=True)
class Process:
    """One process: ``names`` are those of the slices.

    The columns are parallel: the slice's track and name, when it starts and how long it is, in
    nanoseconds. Slices of one track are nested, or apart; one of length 0 is an instant.
    """

    pid: int
    name: str
    tracks: Sequence[str]
    names: Sequence[str]
    track: Array
    label: Array
    start: Array
    nanos: Array


def trace(processes: Sequence[Process]) -> Iterator[bytes]:
    """The trace, in parts."""
    first = 1
    for sequence, process in enumerate(processes, 1):
        yield _descriptors(process, first, sequence)
        yield _events(process, first + 1, sequence)
        first += 1 + len(process.tracks)


def _descriptors(process: Process, first: int, sequence: int) -> bytes:
    """The process, its tracks, and the names of its slices."""
    about = _number(1, process.pid) + _text(6, process.name)
    descriptors = [_number(1, first) + _part(3, about)]
    for at, name in enumerate(process.tracks, first + 1):
        descriptors.append(_number(1, at) + _text(2, name) + _number(5, first))
    names = b"".join(
        _part(2, _number(1, at) + _text(2, name)) for at, name in enumerate(process.names, 1)
    )
    packets = [_number(10, sequence) + _number(13, CLEARED) + _part(12, names)]
    packets += [_number(10, sequence) + _part(60, one) for one in descriptors]
    return b"".join(_part(1, one) for one in packets)


def _events(process: Process, first: int, sequence: int) -> bytes:
    """Where each slice begins and ends, in the order of time."""
    count = len(process.start)
    order = np.lexsort((-process.nanos.astype(np.int64), process.start))  # outer ones first
    start, nanos = process.start[order], process.nanos[order]
    is_long = nanos > 0
    ends = start[is_long] + nanos[is_long]
    at = np.concatenate([start, ends])
    place = np.concatenate([np.arange(count), -np.arange(count)[is_long]])
    begins = np.concatenate([np.ones(count, bool), np.zeros(len(ends), bool)])
    kind = np.concatenate([np.where(is_long, BEGIN, INSTANT), np.full(len(ends), END)])
    track, label = process.track[order], process.label[order]
    track, label = (np.concatenate([one, one[is_long]]) for one in (track, label))
    # What ends, ends before the next begins, inner ones first.
    sequence_of = np.lexsort((place, begins, at))
    return _packets(
        at[sequence_of], kind[sequence_of], track[sequence_of] + first, label[sequence_of] + 1,
        sequence,
    )  # fmt: skip


def _packets(at: Array, kind: Array, track: Array, name: Array, sequence: int) -> bytes:
    """A packet for each event, all of the same layout."""
    event = [b"\x48", (kind, 1), b"\x58", (track, _WIDTHS["track"]), b"\x50",
             (name, _WIDTHS["name"])]  # fmt: skip
    inner = _length(event)
    packet: list[Any] = [
        b"\x40", (at, _WIDTHS["time"]), b"\x50", (sequence, _WIDTHS["sequence"]),
        bytes([0x68, NEEDS_NAMES, 0x5A, inner]), *event,
    ]  # fmt: skip
    packet = [bytes([0x0A, _length(packet)]), *packet]
    found = np.empty((len(at), _length(packet)), np.uint8)
    column = 0
    for piece in packet:
        if isinstance(piece, bytes):
            found[:, column : column + len(piece)] = np.frombuffer(piece, np.uint8)
            column += len(piece)
            continue
        number, width = piece
        left = np.asarray(number, np.uint64)
        for byte in range(width):
            goes_on = 0x80 if byte < width - 1 else 0
            found[:, column] = (left & np.uint64(0x7F)).astype(np.uint8) | goes_on
            left = left >> np.uint64(7)
            column += 1
    return found.tobytes()


def _length(pieces: Sequence[Any]) -> int:
    return sum(len(one) if isinstance(one, bytes) else one[1] for one in pieces)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _number(tag: int, value: int) -> bytes:
    return _varint(tag << 3) + _varint(value)


def _part(tag: int, value: bytes) -> bytes:
    return _varint(tag << 3 | 2) + _varint(len(value)) + value


def _text(tag: int, value: str) -> bytes:
    return _part(tag, value.encode(errors="replace"))
