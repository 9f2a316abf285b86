"""Reads a compiled program's text (HLO): its operations, how often each runs, who takes part. Pure.

The text is that of one device's program, after XLA has partitioned and optimized it. So the sizes
in it are those of one device, and what is in it is what runs.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

COLLECTIVES = frozenset({
    "all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute",
    "ragged-all-to-all", "reduce-scatter",
})  # fmt: skip
ANY_COLLECTIVE = "|".join(sorted(COLLECTIVES))  # in a regular expression
MATRIX = frozenset(("dot", "convolution", "custom-call"))  # of these XLA's own products
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_WHEN = {"while": "loop", "conditional": "branch"}

_HEADER = re.compile(r"(ENTRY )?%?([^\s(]+) (?:\(.*\) -> .*)?\{")
_OPERATION = re.compile(r"(?:ROOT )?%?(\S+) = (.*?) ([a-z][a-z0-9-]*)\((.*)")
_CALLED = re.compile(r"\b[a-z_-]+=\{?(%[^,\s{}]+(?:, ?%[^,\s{}]+)*)\}?")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=]*)\]")
_OPERAND = re.compile(r"%([^\s,()]+)")
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
_GEMM = 'custom_call_target="__cublas$'
_CONVOLUTION = 'custom_call_target="__cudnn$convForward"'
KNOWN_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SIZE = re.compile(r"num_partitions=(\d+)|replica_count=(\d+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SOURCE = re.compile(r'source_file="([^"]*)"(?:.*?source_line=(\d+))?')
_NUMBERS = re.compile(r"\d+")
_GROUPS = re.compile(
    r"replica_groups=(?:(?P<lists>\{\{[\d,{} ]*\}\})|(?P<none>\{\})"
    r"|\[(?P<made>[\d,]+)\]<=\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
    r"|mesh\[(?P<mesh>[^\]]*)\](?:, ?device_ids=\((?P<ids>.*?)\))?(?=[ {]) ?\{(?P<axes>[^}]*)\})"
)
_IOTA = re.compile(r"\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?$")
_AXIS = re.compile(r"(?P<name>'[^']*'|\"[^\"]*\"|[^,=:]+)(?::\((?P<before>\d+)\)(?P<size>\d+))?")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")

Groups = tuple[tuple[int, ...], ...]
Frame = tuple[str, int]  # a file and a line in it


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of a computation. ``shape`` is that of its result; ``attributes`` all that follows.

    ``calls`` are the computations that it names.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    attributes: str
    calls: tuple[str, ...]

    @property
    def collective(self) -> str:
        """Which collective it makes or begins; "" for none. What awaits its end is not one."""
        opcode = self.opcode.removesuffix("-start")
        return opcode if opcode in COLLECTIVES else ""


@dataclass(frozen=True)
class Program:
    """A module. ``size`` is how many devices run it; ``frames`` are stacks, innermost first."""

    entry: str
    computations: Mapping[str, Sequence[Operation]]
    size: int
    frames: Mapping[int, tuple[Frame, ...]] = field(default_factory=dict)

    @functools.cached_property
    def shapes(self) -> dict[tuple[str, str], str]:
        """(computation, operation) -> the shape of its result."""
        return {
            (name, one.name): one.shape
            for name, body in self.computations.items()
            for one in body
        }  # fmt: skip

    def stack(self, operation: Operation) -> tuple[Frame, ...]:
        """The lines of Python that an operation comes from, innermost first."""
        if (frame := _FRAME.search(operation.attributes)) is not None:
            return self.frames.get(int(frame[1]), ())
        if (source := _SOURCE.search(operation.attributes)) is not None:
            return ((source[1], int(source[2] or 0)),)
        return ()


@dataclass(frozen=True)
class Run:
    """An operation, and how often it runs.

    ``when``: "" if that is certain; ``loop``: so often for each turn of a loop whose number of
    turns is not known; ``branch``: if its branch is taken.
    """

    computation: str
    operation: Operation
    times: int
    when: str


def parse(text: str) -> Program:
    """The program of a compiled module's text.

    Raises:
      ValueError: it is not one that is understood.
    """
    computations: dict[str, list[Operation]] = {}
    body: list[Operation] | None = None
    entry = ""
    lines = text.splitlines()
    for line in map(str.strip, lines):
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
    sizes = [int(one or other) for one, other in _SIZE.findall(text.partition("\n")[0])]
    return Program(entry, computations, math.prod(sizes), _frames(lines))


def _operation(line: str) -> Operation:
    found = _OPERATION.match(line)
    if found is None:
        raise ValueError(f"a line of the compiled text is not understood: {line[:80]}")
    name, shape, opcode, rest = found.groups()
    end = _closing(rest)
    calls = tuple(
        one.strip().removeprefix("%") for names in _CALLED.findall(rest) for one in names.split(",")
    )
    operands = tuple(_OPERAND.findall(rest[:end]))
    return Operation(name.removeprefix("%"), opcode, shape, operands, rest[end:], calls)


def _closing(rest: str) -> int:
    """Where the parenthesis closes that was opened before ``rest``."""
    depth = 1
    for found in re.finditer(r"[()]", rest):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return found.start()
    return len(rest)


def _frames(lines: Sequence[str]) -> dict[int, tuple[Frame, ...]]:
    """The stacks in the tables at the text's beginning, where it has them."""
    tables = _tables(lines)
    files = {at: name.strip('"') for at, name in tables["FileNames"].items()}
    places = {
        at: (files.get(_field(told, "file_name_id"), ""), _field(told, "line"))
        for at, told in tables["FileLocations"].items()
    }
    stacks = {
        at: (_field(told, "file_location_id"), _field(told, "parent_frame_id"))
        for at, told in tables["StackFrames"].items()
    }
    # jaxlib 0.10.2 and 0.12 write a parent's number as one more than it is: 1 means none.
    shift = 0 if any(parent == 0 for _, parent in stacks.values()) else 1
    found: dict[int, tuple[Frame, ...]] = {}
    for first in stacks:
        stack: list[Frame] = []
        at = first
        while at in stacks and len(stack) < len(stacks):
            place, parent = stacks[at]
            stack.append(places.get(place, ("", 0)))
            at = parent - shift
        found[first] = tuple(stack)
    return found


def _tables(lines: Sequence[str]) -> dict[str, dict[int, str]]:
    """The rows of each table, by their numbers."""
    tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
    table: dict[int, str] = {}
    for line in lines:
        if line.startswith(("%", "ENTRY")):
            break
        number, _, told = line.partition(" ")
        if line in tables:
            table = tables[line]
        elif number.isdecimal():
            table[int(number)] = told
    return tables


def _field(told: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", told)
    return int(found[1]) if found else 0


# --------------------------------------------------------------------------- shapes


def nbytes(shape: str) -> int:
    """The bytes of a shape, or of all that a tuple of shapes has."""
    each = ((kind, map(int, _NUMBERS.findall(axes))) for kind, axes in _ARRAY.findall(shape))
    return sum(-(-_bits(kind) * math.prod(sizes) // 8) for kind, sizes in each)


def dims(shape: str) -> tuple[int, ...]:
    """The dimensions of the first array in a shape."""
    found = _ARRAY.search(shape)
    return tuple(map(int, _NUMBERS.findall(found[2]))) if found else ()


def short(shapes: Sequence[str]) -> str:
    """Shapes without their layouts: ``f32[4,64]``, ``2 x f32[4,64]``, ``3 arrays``."""
    found = [f"{kind}[{axes}]" for shape in shapes for kind, axes in _ARRAY.findall(shape)]
    if len(found) > 1 and len(set(found)) > 1:
        return f"{len(found)} arrays"
    return f"{len(found)} x {found[0]}" if len(found) > 1 else "".join(found)


def _bits(kind: str) -> int:
    if kind == "pred":
        return 8
    size = _NUMBERS.search(kind)
    return int(size[0]) if size else 0  # a token, or what has no size


# --------------------------------------------------------------------------- what runs


def runs(program: Program, opcodes: frozenset[str] = COLLECTIVES | MATRIX) -> Iterator[Run]:
    """The operations of these kinds, each with how often it runs, in the text's order."""
    wanted = _reaching(program, opcodes)

    def visit(name: str, times: int, when: str) -> Iterator[Run]:
        for one in program.computations[name]:
            if one.opcode.removesuffix("-start") in opcodes:
                yield Run(name, one, times, when)
            if one.opcode.endswith(("-done", "-update")):
                continue  # it names what its beginning has named
            turns = KNOWN_TURNS.search(one.attributes) if one.opcode == "while" else None
            inner = when if turns is not None else _WHEN.get(one.opcode, when)
            for called in one.calls:
                if called in wanted:
                    yield from visit(called, times * int(turns[1] if turns else 1), inner)

    yield from visit(program.entry, 1, "")


def _reaching(program: Program, opcodes: frozenset[str]) -> set[str]:
    """The computations that have such operations, or call one that has."""
    found: set[str] = set()
    while True:
        more = {
            name
            for name, body in program.computations.items()
            if name not in found
            and any(
                one.opcode.removesuffix("-start") in opcodes or found.intersection(one.calls)
                for one in body
            )
        }
        if not more:
            return found
        found |= more


def given(program: Program, run: Run) -> list[str]:
    """The shapes of what an operation is given, on one device."""
    shapes = program.shapes
    return [shapes.get((run.computation, name), "") for name in run.operation.operands]


def matrix_flops(program: Program, run: Run) -> int:
    """The operations of a matrix product or a convolution: a product and a sum for each."""
    one = run.operation
    if one.opcode not in MATRIX or is_uncounted(one):
        return 0
    sides = [dims(shape) for shape in given(program, run)]
    made = math.prod(dims(one.shape))
    if one.opcode != "convolution" and _CONVOLUTION not in one.attributes:
        axes = _CONTRACTED.search(one.attributes)
        return 2 * made * math.prod(sides[0][axis] for axis in _ints(axes[1])) if axes else 0
    labels = re.search(r"dim_labels=\w+_(\w+)->", one.attributes)
    if labels is None or len(sides) < 2:
        return 0
    made_of = math.prod(sides[1]) // sides[1][labels[1].index("o")]  # for each output feature
    return 2 * made * made_of


def is_uncounted(operation: Operation) -> bool:
    """Whether it is a call of which nothing here knows what it computes."""
    is_known = _GEMM in operation.attributes or _CONVOLUTION in operation.attributes
    return operation.opcode == "custom-call" and not is_known


# --------------------------------------------------------------------------- who takes part


def pairs(operation: Operation) -> Groups:
    """The (source, target) pairs of a permute."""
    found = _PAIRS.search(operation.attributes)
    return _cut(_ints(found[1]), 2) if found else ()


def groups(operation: Operation, size: int) -> Groups:
    """The devices of which each takes part in one collective, by their places in the program.

    Args:
      size: how many run it: no groups are one of all.
    """
    found = _GROUPS.search(operation.attributes)
    if found is None or found["none"] is not None:
        return (tuple(range(size)),)
    if found["lists"] is not None:
        return tuple(
            tuple(map(int, _NUMBERS.findall(each)))
            for each in re.findall(r"\{([\d,]*)\}", found["lists"][1:-1])
        )
    if found["mesh"] is not None:
        return _mesh_groups(found["mesh"], found["ids"], found["axes"])
    rows = _ints(found["made"])
    return _cut(_iota(found), rows[-1])


def _ints(text: str) -> list[int]:
    return list(map(int, _NUMBERS.findall(text)))


def _cut(places: Sequence[int], length: int) -> Groups:
    return tuple(tuple(places[at : at + length]) for at in range(0, len(places), length))


def _iota(found: re.Match[str]) -> list[int]:
    """``[8]<=[4,2]T(1,0)``: 0, 1, ... in a box of these sides, its axes in another order."""
    sides = _ints(found["dims"])
    order = _ints(found["order"]) if found["order"] else list(range(len(sides)))
    return _ordered(sides, order)


def _ordered(sides: Sequence[int], order: Sequence[int]) -> list[int]:
    """The numbers of a box's places, row by row once its axes are in this order."""
    strides = [math.prod(sides[axis + 1 :]) for axis in range(len(sides))]
    steps = [[at * strides[axis] for at in range(sides[axis])] for axis in order]
    return [sum(place) for place in itertools.product(*steps)]


def _mesh_groups(mesh: str, ids: str | None, axes: str) -> Groups:
    """``mesh['x'=4,'y'=2] {'y'}``; an axis may be a part of one: ``'x':(2)2``."""
    sides = {name: int(size) for name, _, size in (one.rpartition("=") for one in mesh.split(","))}
    cut: dict[str, tuple[int, int]] = {}  # a part of an axis: how much comes before it, its size
    chosen: list[tuple[str, str]] = []
    for axis in _AXIS.finditer(axes):
        name = axis["name"].strip()
        if axis["before"] is not None:
            cut[name] = int(axis["before"]), int(axis["size"])
        chosen.append((name, "part" if axis["before"] is not None else "all"))
    boxes: list[tuple[str, str, int]] = []
    for name, side in sides.items():
        before, size = cut.get(name, (1, side))
        if name not in cut:
            boxes.append((name, "all", side))
            continue
        boxes += [(name, "before", before), (name, "part", size)]
        boxes.append((name, "after", side // (before * size)))
    kept = [at for at, (name, part, _) in enumerate(boxes) if (name, part) not in chosen]
    varied = [
        at for each in chosen for at, (name, part, _) in enumerate(boxes) if (name, part) == each
    ]
    places = _ordered([size for *_, size in boxes], kept + varied)
    if ids is not None:
        iota = _IOTA.search(ids)
        known = _iota(iota) if iota is not None else _ints(ids)
        places = [known[at] for at in places]
    return _cut(places, math.prod(boxes[at][2] for at in varied))
