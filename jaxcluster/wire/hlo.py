"""XLA's text of a compiled program, read: its computations and their operations. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ANY_COLLECTIVE = (  # in a regular expression
    "all-gather|all-reduce|all-to-all|collective-broadcast|collective-permute|ragged-all-to-all"
    "|reduce-scatter"
)

_HEADER = re.compile(r"(ENTRY )?%?([^\s(]+) (?:\(.*\) -> .*)?\{")
_OPERATION = re.compile(r"(?:ROOT )?%?\S+ = (.*?) ([a-z][a-z0-9-]*)\((.*)")
_CALLED = re.compile(r"\b[a-z_-]+=\{?(%[^,\s{}]+(?:, ?%[^,\s{}]+)*)\}?")
KNOWN_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of a computation. ``shape`` is that of its result.

    ``attributes`` is all that follows the operands. ``calls`` are the computations that it names.
    """

    opcode: str
    shape: str
    attributes: str
    calls: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A module: its computations by their names, and which of them runs."""

    entry: str
    computations: Mapping[str, Sequence[Operation]]


def parse(text: str) -> Program:
    """The program of a compiled module's text.

    Raises:
      ValueError: it is not one that is understood.
    """
    computations: dict[str, list[Operation]] = {}
    body: list[Operation] | None = None
    entry = ""
    for line in map(str.strip, text.splitlines()):
        if body is None:
            if (header := _HEADER.fullmatch(line)) is not None:
                if header[2] in computations:
                    raise ValueError(f"the compiled text has {header[2]} twice")
                body = computations[header[2]] = []
                entry = entry or (header[2] if header[1] else "")
        elif line == "}" or line.startswith("}, "):
            body = None
        elif line:
            body.append(_operation(line))
    if not entry:
        raise ValueError("the compiled text has no entry")
    if body is not None:
        raise ValueError("the compiled text is cut off")
    return Program(entry, computations)


def _operation(line: str) -> Operation:
    found = _OPERATION.match(line)
    if found is None:
        raise ValueError(f"a line of the compiled text is not understood: {line[:80]}")
    shape, opcode, rest = found.groups()
    calls = tuple(
        one.strip().removeprefix("%") for names in _CALLED.findall(rest) for one in names.split(",")
    )
    return Operation(opcode, shape, rest[_closing(rest) :], calls)


def _closing(rest: str) -> int:
    """Where the parenthesis closes that was opened before ``rest``."""
    depth = 1
    for found in re.finditer(r"[()]", rest):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.start()
    return len(rest)
