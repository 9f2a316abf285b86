"""Reads a trace for Perfetto by the format's own rules; what it would complain of is an error."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BEGIN, END, INSTANT = 1, 2, 3


@dataclass(frozen=True)
class Slice:
    process: str
    track: str
    name: str
    start: int
    end: int


def read(trace: bytes | str | Path) -> list[Slice]:
    """Its slices, in the order in which they begin; those that are not nested are an error."""
    data = trace if isinstance(trace, bytes) else gzip.decompress(Path(trace).read_bytes())
    names: dict[tuple[int, int], str] = {}
    tracks: dict[int, tuple[str, int]] = {}
    opened: dict[int, list[tuple[str, int]]] = {}
    found: list[Slice] = []
    for _, packet in fields(data):
        known = dict(fields(_bytes(packet)))
        sequence = _int(known[10])
        for tag, interned in fields(_bytes(known.get(12, b""))):
            one = dict(fields(_bytes(interned)))
            assert tag == 2
            names[sequence, _int(one[1])] = _bytes(one[2]).decode()
        if 60 in known:
            one = dict(fields(_bytes(known[60])))
            process = dict(fields(_bytes(one.get(3, b""))))
            named = _bytes(one.get(2, process.get(6, b""))).decode()
            tracks[_int(one[1])] = named, _int(one.get(5, 0))
        if 11 in known:
            assert known[13] == 2  # by names that were given before
            event = dict(fields(_bytes(known[11])))
            at, uuid = _int(known[8]), _int(event[11])
            name, (track, parent) = names[sequence, _int(event[10])], tracks[uuid]
            process_name = tracks[parent][0]
            if event[9] == BEGIN:
                opened.setdefault(uuid, []).append((name, at))
            elif event[9] == INSTANT:
                found.append(Slice(process_name, track, name, at, at))
            else:
                began, start = opened[uuid].pop()
                assert began == name, f"{name} ends in {began}"
                found.append(Slice(process_name, track, name, start, at))
    assert not any(opened.values())
    return sorted(found, key=lambda one: one.start)


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value, at = _varint(data, at)
        if key & 7 == 0:
            yield key >> 3, value
        else:
            assert key & 7 == 2
            assert at + value <= len(data)
            yield key >> 3, data[at : at + value]
            at += value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


def _int(value: int | bytes) -> int:
    assert isinstance(value, int)
    return value
