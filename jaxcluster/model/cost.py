"""What a call would cost: its collectives, operations, memory, time to compile. Pure."""

from __future__ import annotations

import ast
import base64
import functools
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxcluster import wire
from jaxcluster.errors import UsageError
from jaxcluster.model.outputs import CellRecord
from jaxcluster.wire import hlo

EXAMPLE = "For example: %jaxcluster cost step(params, batch)"
UNWRITTEN = {"bound": "what the function holds", "": "arguments"}
NOTABLE = 100  # what is replicated is told from a hundredth of the memory on


@dataclass(frozen=True)
class Collective:
    """The collectives of one line of the program, alike in all.

    Attributes:
      kind: ``all-reduce`` and the like.
      axes: of the mesh, over which it goes; none: they are not known.
      over: these, or who takes part, in words.
      times: how often one launch makes them.
      when: as in ``hlo.Run``: "" where that is certain.
      shape: what one device gives to each.
      nbytes: the size of what one makes or moves, on one device: of a gather's result, of what
        others are given.
      sent: how many bytes one device sends for one, in a ring.
      spans: whether it goes over several processes.
      place: the line that it comes from; ``within``: the line of a library that this has called.
    """

    kind: str
    axes: tuple[str, ...]
    over: str
    times: int
    when: str
    shape: str
    nbytes: int
    sent: int
    spans: bool
    place: str = ""
    within: str = ""

    @property
    def all_sent(self) -> int:
        """What one device sends for all of them."""
        return self.times * self.sent


@dataclass(frozen=True)
class Replicated:
    """Arrays of one argument that devices along these axes have copies of.

    Attributes:
      count: how many arrays, of ``total`` that the argument has.
      nbytes: what they take on each device, and ``sharded`` what they would if they were cut.
    """

    what: str
    axes: tuple[str, ...]
    ways: int
    count: int
    total: int
    nbytes: int
    sharded: int


@dataclass(frozen=True)
class Cost:
    """What a call would cost.

    Attributes:
      expression: the call.
      name: of its function.
      size: how many devices run it, and ``mesh`` how they are laid out.
      collectives: the most bytes first.
      flops: of one device, each loop as often as it turns; None: not known.
      uncounted: what may come to the ``flops``; "" for nothing.
      memory: bytes of one device by kind.
      lower_s, compile_s: seconds by rank.
      replicated: what could be sharded.
      differs: ranks that have lowered another program than the first.
      notes: what else is to be said, in sentences.
    """

    expression: str
    name: str
    size: int
    mesh: Mapping[str, int]
    collectives: tuple[Collective, ...]
    flops: float | None
    uncounted: str
    memory: Mapping[str, int]
    lower_s: Mapping[int, float]
    compile_s: Mapping[int, float]
    replicated: tuple[Replicated, ...] = ()
    differs: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def by_axis(self) -> dict[str, int]:
        """What one device sends over each axis of the mesh, the most first."""
        found: dict[str, int] = {}
        for one in self.collectives:
            found[one.over] = found.get(one.over, 0) + one.all_sent
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    @property
    def spanning(self) -> frozenset[str]:
        """Over which of these several processes take part."""
        return frozenset(one.over for one in self.collectives if one.spans)

    @property
    def peak(self) -> int:
        """The most that is held on one device; 0: not known.

        All of these are reserved before the program runs.
        """
        held = sum(nbytes for kind, nbytes in self.memory.items() if kind != "donated")
        return held - self.memory.get("donated", 0)


def check_call(source: str) -> str:
    """The call, in one piece.

    Raises:
      UsageError: it is not one.
    """
    source = source.strip()
    try:
        call = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{source[:80]!r} is not a call of a function.", EXAMPLE) from None
    if not isinstance(call, ast.Call):
        raise UsageError(f"{source[:80]!r} is not a call of a function.", EXAMPLE)
    if any(isinstance(node, ast.Await | ast.Yield | ast.YieldFrom) for node in ast.walk(call)):
        raise UsageError("A call whose cost is asked can't await.", EXAMPLE)
    return source


def reported(record: CellRecord) -> dict[int, wire.StepCost]:
    """What each rank has said of it."""
    return {
        rank: wire.parse(wire.StepCost, output.content["cost"])
        for rank, one in record.records.items()
        for output in one.outputs()
        if "cost" in output.content
    }


def estimate(expression: str, reports: Mapping[int, wire.StepCost]) -> Cost:
    """What the ranks' reports say together: the first one's program, and how all compiled it.

    Raises:
      UsageError: the compiled text is not understood.
    """
    first = reports[min(reports)]
    try:
        program = hlo.parse(zlib.decompress(base64.b64decode(first.text)).decode())
    except ValueError as error:
        raise UsageError(
            f"{first.name} was compiled, but what XLA says of it can't be read: {error}.",
            "Please report it, with what %jaxcluster doctor prints.",
        ) from None
    layout = Layout(program.size, tuple(first.processes), tuple(first.meshes))
    found = _collectives(program, layout, first.files)
    flops, uncounted = _flops(program, first.flops)
    mesh = first.meshes[0] if first.meshes else None
    cost = Cost(
        expression=expression,
        name=first.name,
        size=program.size,
        mesh=dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)) if mesh is not None else {},
        collectives=tuple(sorted(found, key=lambda one: -one.all_sent)),
        flops=flops,
        uncounted=uncounted,
        memory=first.memory,
        lower_s={rank: one.lower_s for rank, one in sorted(reports.items())},
        compile_s={rank: one.compile_s for rank, one in sorted(reports.items())},
        differs=tuple(
            rank
            for rank, one in sorted(reports.items())
            if one.digest and first.digest and one.digest != first.digest
        ),
        notes=_notes(expression, reports),
    )
    names = _argument_names(expression)
    return replace(cost, replicated=_replicated(first.arguments, names, cost.peak))


def _notes(expression: str, reports: Mapping[int, wire.StepCost]) -> tuple[str, ...]:
    first = reports[min(reports)]
    names = _argument_names(expression)
    notes = [
        f"{names.get(at, at)} was not computed: its sharding is not known, and it counts as "
        "replicated. Assign it to a name in a cell first."
        for at in first.abstract
    ]
    if launches := max(one.launches for one in reports.values()):
        programs = "1 program" if launches == 1 else f"{launches} programs"
        notes.append(f"While it was traced its own code launched {programs}.")
    return tuple(notes)


def _argument_names(expression: str) -> dict[str, str]:
    """What is written for each argument, by its number or name."""
    call = ast.parse(expression, mode="eval").body
    assert isinstance(call, ast.Call)
    if any(isinstance(one, ast.Starred) for one in call.args):
        return {}
    found = {str(at): one for at, one in enumerate(call.args)}
    found |= {one.arg: one.value for one in call.keywords if one.arg is not None}
    return {at: ast.unparse(one) for at, one in found.items()}


# --------------------------------------------------------------------------- collectives


@dataclass(frozen=True)
class Layout:
    """Where the places of a program are: in which process, and where in which meshes."""

    size: int
    processes: tuple[int, ...]
    meshes: tuple[wire.MeshInfo, ...]

    def spans(self, groups: Iterable[Sequence[int]]) -> bool:
        """Whether places of several processes are in one group."""
        known = self.processes
        return any(len({known[at] for at in each if at < len(known)}) > 1 for each in groups)

    def axes(self, groups: hlo.Groups, is_pairs: bool) -> tuple[tuple[str, ...], str]:
        """(the axes over which groups go, the same in words).

        A mesh whose axes are just what each group has whole comes before one that has to be cut.
        """
        found = [(self._varying(mesh, groups), mesh) for mesh in self.meshes]
        for names, mesh in found:
            sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
            whole = math.prod(sizes[name] for name in names)
            if names and (is_pairs or all(len(each) == whole for each in groups)):
                return names, _times(names)
        for names, _ in found:
            if names:
                return names, f"part of {_times(names)}"
        most = max(map(len, groups), default=0)
        return (), "all devices" if most == self.size else f"groups of {most}"

    def _varying(self, mesh: wire.MeshInfo, groups: hlo.Groups) -> tuple[str, ...]:
        """The axes along which members of one group differ."""
        places = _coordinates(tuple(mesh.devices), tuple(mesh.axis_sizes))
        if not all(at in places for each in groups for at in each):
            return ()
        return tuple(
            name
            for axis, name in enumerate(mesh.axis_names)
            if any(len({places[at][axis] for at in each}) > 1 for each in groups)
        )


def _times(names: Sequence[str]) -> str:
    return " x ".join(names)


@functools.lru_cache(64)
def _coordinates(devices: tuple[int, ...], sizes: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    found = {}
    for number, device in enumerate(devices):
        place, left = [], number
        for size in reversed(sizes):
            place.append(left % size)
            left //= size
        found[device] = tuple(reversed(place))
    return found


def _collectives(
    program: hlo.Program, layout: Layout, files: Mapping[str, Sequence[object]]
) -> list[Collective]:
    """Those of the program; what is alike but for its number is one."""
    found: dict[Collective, int] = {}
    for run in hlo.runs(program, hlo.COLLECTIVES):
        one = _collective(program, run, layout, files)
        found[one] = found.get(one, 0) + run.times
    return [replace(one, times=times) for one, times in found.items()]


def _collective(
    program: hlo.Program, run: hlo.Run, layout: Layout, files: Mapping[str, Sequence[object]]
) -> Collective:
    kind, shapes = run.operation.collective, hlo.given(program, run)
    given = sum(map(hlo.nbytes, shapes))
    is_pairs = kind == "collective-permute"
    groups = hlo.pairs(run.operation) if is_pairs else hlo.groups(run.operation, program.size)
    axes, over = layout.axes(groups, is_pairs)
    members = max(map(len, groups), default=1)
    place, within = place_of(program.stack(run.operation), files)
    return Collective(
        kind=kind,
        axes=axes,
        over=over,
        times=0,
        when=run.when,
        shape=hlo.short(shapes),
        nbytes=given * members if kind == "all-gather" else given,
        sent=_sent_by_permute(groups) * given if is_pairs else sent(kind, members, given),
        spans=layout.spans(groups),
        place=place,
        within=within,
    )


def sent(kind: str, members: int, given: int) -> int:
    """The bytes that each of so many devices sends, in a ring.

    Args:
      given: what each gives to it, in bytes.
    """
    others = members - 1
    match kind:
        case "all-reduce":
            return 2 * given * others // members
        case "all-gather":
            return given * others
        case "collective-broadcast":
            return given if others else 0
    return given * others // members


def _sent_by_permute(pairs: hlo.Groups) -> int:
    """How often the busiest device sends what it has to another."""
    count: dict[int, int] = {}
    for source, target in pairs:
        count[source] = count.get(source, 0) + (source != target)
    return max(count.values(), default=0)


def place_of(stack: Sequence[hlo.Frame], files: Mapping[str, Sequence[object]]) -> tuple[str, str]:
    """(the cell's line or else the innermost one, a library's that the cell has called)."""
    told = [(*files[file], line) for file, line in stack if file in files]
    inner = next((f"{name} line {line}" for cell, name, tells, line in told if tells), "")
    for cell, _, _, line in told:
        if cell is not None:
            is_inner = told[0][0] is not None or not inner
            return f"cell [{cell}] line {line}", "" if is_inner else inner
    return inner, ""


# --------------------------------------------------------------------------- what it computes


def _flops(program: hlo.Program, counted: float | None) -> tuple[float | None, str]:
    """(the operations of one device, what is not among them).

    XLA counts a loop's turn once, and takes one away for each custom call. Most of what is in a
    loop are matrix products: these are counted as often as it turns. On GPU some of them are custom
    calls.
    """
    if counted is None:
        return None, ""
    runs = list(hlo.runs(program, hlo.MATRIX))
    total, uncounted = counted, ""
    for run in runs:
        is_call = run.operation.opcode == "custom-call"
        total += (run.times - (not is_call)) * hlo.matrix_flops(program, run) + is_call
        if hlo.is_uncounted(run.operation):
            uncounted = "what custom calls compute is not known"
    if any(run.when == "loop" for run in runs):
        uncounted = "a loop's turns are not known"
    return (None, "") if total < 0 else (total, uncounted)


def _replicated(
    arguments: Sequence[wire.CostArgument], names: Mapping[str, str], peak: int
) -> tuple[Replicated, ...]:
    """What devices have copies of and could be cut, by argument and axes, the most first."""
    totals: dict[str, int] = {}
    found: dict[tuple[str, tuple[str, ...], int], Replicated] = {}
    for one in arguments:
        what = names.get(one.at) or UNWRITTEN.get(one.at, f"argument {one.at}")
        totals[what] = totals.get(what, 0) + 1
        axes = _spare_axes(one)
        ways = math.prod(one.mesh[name] for name in axes)
        if ways < 2:
            continue
        known = found.get((what, axes, ways)) or Replicated(what, axes, ways, 0, 0, 0, 0)
        found[what, axes, ways] = replace(
            known,
            count=known.count + 1,
            nbytes=known.nbytes + one.nbytes,
            sharded=known.sharded + one.nbytes // ways,
        )
    told = [
        replace(one, total=totals[one.what])
        for one in found.values()
        if NOTABLE * (one.nbytes - one.sharded) >= peak
    ]
    return tuple(sorted(told, key=lambda one: one.sharded - one.nbytes))


def _spare_axes(one: wire.CostArgument) -> tuple[str, ...]:
    """The axes of the mesh that don't cut it, as many as could: each by one of its sides."""
    used = {name for names in one.split for name in names}
    sides = [
        side // math.prod(one.mesh.get(name, 1) for name in names)
        for side, names in zip(one.shape, one.split, strict=False)
    ]
    axes = []
    for name, size in sorted(one.mesh.items(), key=lambda each: -each[1]):
        if name in used or size < 2:
            continue
        at = next((at for at, side in enumerate(sides) if side and side % size == 0), None)
        if at is not None:
            sides[at] //= size
            axes.append(name)
    return tuple(axes)
