"""Asks the ranks about arrays: layouts, statistics, replica checks, meshes and memory.

A rank that does not answer in time is named in the result.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from jaxcluster import wire
from jaxcluster.cluster import transfer
from jaxcluster.cluster.world import World
from jaxcluster.errors import UsageError
from jaxcluster.model import layout
from jaxcluster.model.layout import ArrayLayout, CheckResult, Device, TreeLayout
from jaxcluster.ranks import by_value, name_ranks, tell_each
from jaxcluster.wire.link import replies, unwrap
from jaxcluster.wire.ops import arrays as requests
from jaxcluster.wire.ops.arrays import Arrays, CheckShards, Read, Variables

LOOK_S = 2.0  # for what a rank's side thread answers at once
TREE_S = 10.0  # ... and for what may take seconds: a tree of a million leaves
READ_S = 60.0  # for reading every byte of what it holds

Path = tuple[str, ...]
T = TypeVar("T")

# --------------------------------------------------------------------------- layouts


def split_name(text: str) -> tuple[str, Path]:
    """A variable and the way to a part of it: ``p['w'][0].b`` -> ``p``, ``("['w']", '[0]', '.b')``.

    ``""`` is what the last cell ended in.

    Raises:
      UsageError: it is not one. Expressions are not evaluated.
    """
    steps: list[str] = []
    if not text:
        return "", ()
    with contextlib.suppress(SyntaxError, ValueError):
        node = ast.parse(text.strip(), mode="eval").body
        while isinstance(node, ast.Attribute | ast.Subscript):
            if isinstance(node, ast.Attribute):
                steps.append(f".{node.attr}")
            elif type(key := ast.literal_eval(node.slice)) in (int, str):
                steps.append(f"[{key!r}]")
            else:
                break
            node = node.value
        if isinstance(node, ast.Name):
            return node.id, tuple(reversed(steps))
    raise UsageError(
        f"{text!r} is neither a variable nor a part of one.",
        "For example: %shards x   or   %shards params['layers'][0]",
    )


def look(world: World, text: str, ranks: Sequence[int] | None = None) -> ArrayLayout | TreeLayout:
    """See ``Cluster.layout``; ``""`` is what the last cell ended in, on all ranks or on these."""
    name, path = split_name(text)
    asked = dict.fromkeys(world.check_ranks(ranks), Arrays(name, list(path)))
    found, reasons = world.ask_some(asked, timeout_s=TREE_S)
    if not (reports := dict(sorted(found.items()))):
        raise UsageError(_why_nothing(reasons))
    devices, first = cluster_devices(world), reports[min(reports)]
    odd = layout.odd_copies({rank: report.copies for rank, report in reports.items()})
    notes: dict[int, str] = {}
    for leaf, (most, *others) in sorted(odd.items(), reverse=True):
        of = "".join(first.leaves[leaf]) if leaf < len(first.leaves) else ""
        for rank in itertools.chain(*others):
            notes[rank] = f"its copy{of and f' of {of}'} differs from that of {name_ranks(most)}"
    if all(report.leaves == [path] for report in reports.values()):
        infos = {rank: report.infos[0] for rank, report in reports.items()}
        array = layout.array_layout(text or "result", infos, devices, reasons)
        return replace(array, notes={**notes, **array.notes}, odd=odd.get(0, ()))
    tree = layout.tree_layout(name, reports, devices, reasons)
    kind = "a part" if path else tree.type
    return replace(tree, type=kind, notes={**notes, **tree.notes})


def _why_nothing(reasons: Mapping[int, str]) -> str:
    """Why no rank has it; ``no variable 'x'`` of all ranks has a sentence of its own."""
    if len(said := by_value(reasons)) == 1 and (reason := next(iter(said))).startswith("no "):
        return f"No rank has {reason.replace('no', 'a', 1)}."
    return f"No rank has an array there: {tell_each(reasons)}."


def cluster_devices(world: World) -> dict[int, Device]:
    """All devices of a cluster, by id."""
    hosts = {facts.rank: facts.hostname for facts in world.record.facts}
    return {
        d.id: Device(d.id, rank, d.kind, d.platform, hosts[rank], d.coords)
        for rank, one in enumerate(world.record.devices)
        for d in one.devices
    }


# --------------------------------------------------------------------------- values


def statistics(world: World, text: str, rank: int, device: int) -> wire.ShardCheck | None:
    """Minimum, maximum, mean and the number of NaN and Inf of a rank's shard, made there."""
    name, path = split_name(text)
    request = CheckShards(name, list(path), device)
    found = unwrap(world.ask([rank], request, timeout_s=READ_S)[rank])
    return found[0] if found else None


def peek(
    world: World, text: str, rank: int, device: int, start: Sequence[int], stop: Sequence[int]
) -> np.ndarray[Any, Any]:
    """A few values of one shard, fetched from its rank alone.

    Args:
      start, stop: for each axis, counted from the shard's own corner.
    """
    name, path = split_name(text)
    at = [list(range(*span)) for span in zip(start, stop, strict=True)]
    ((_, values),) = read(world, [rank], Read(name, list(path), at, device))
    return values


def read(
    world: World, ranks: Sequence[int], request: Read
) -> Iterator[tuple[list[list[int]], np.ndarray[Any, Any]]]:
    """Each piece of what these ranks have of it, and where it belongs."""
    answers = world.ask(ranks, request, timeout_s=READ_S)
    for rank, told in replies(answers).items():
        for one, frame in zip(told, answers[rank].buffers, strict=True):
            dtype = transfer.numpy_dtype(one.dtype)
            yield one.where, np.frombuffer(frame, np.uint8).view(dtype).reshape(one.shape)


def check(world: World, text: str) -> CheckResult:
    """Compare all copies of all parts of ``text``, and look for NaN: each rank reads its own.

    It reads every byte, about a second for each GB a rank holds, and moves only hashes. While a
    cell runs the copies may be of different moments of it.

    Raises:
      UsageError: it can't be compared; why is said.
    """
    name, path = split_name(text)
    answers, reasons = world.ask_some(CheckShards(name, list(path), hash=True), timeout_s=READ_S)
    if not answers:
        raise UsageError(_why_nothing(reasons))
    return layout.compare(text or "result", answers, reasons)


# --------------------------------------------------------------------------- meshes, memory


@dataclass(frozen=True)
class Told(Generic[T]):
    """The ranks' reports of the bytes on their devices; ``reasons`` of ranks that have not."""

    found: T
    devices: Mapping[int, Device] = field(repr=False)
    reasons: Mapping[int, str] = field(default_factory=dict)


def meshes(world: World, name: str | None = None) -> Meshes:
    """The device meshes of the ranks' variables and arrays, or the one that ``name`` leads to.

    A rank's different mesh of the same name is listed under the rank's name. Without
    any mesh there is one axis: all devices in their order.

    Raises:
      UsageError: there is no mesh of that name.
    """
    answers, reasons = world.ask_some(requests.Meshes(), timeout_s=LOOK_S)
    devices = cluster_devices(world)
    found: dict[str, wire.MeshInfo] = {}
    for rank, own in sorted(answers.items()):
        for info in own:
            if found.setdefault(info.name, info) != info:
                found[f"{info.name} (rank {rank})"] = info
    chosen = list(found.values())
    if name is not None:
        ways = (f"{name}.", f"{name}[")
        chosen = [i for key, i in found.items() if key == name or key.startswith(ways)][:1]
        if not chosen:
            known = ", ".join(found) or "none yet"
            raise UsageError(f"The ranks have no mesh {name!r}.", f"Meshes: {known}.")
    elif not found:
        every = sorted(devices)
        chosen = [wire.MeshInfo("all devices", ["device"], [len(every)], [], every)]
    return Meshes(tuple(chosen), devices, reasons)


Meshes = Told[tuple[wire.MeshInfo, ...]]
Memory = Told[Mapping[int, wire.MemoryReport]]  # by rank


def memory(world: World) -> Memory:
    """Bytes on every device: of variables, of other live arrays, and free."""
    answers, reasons = world.ask_some(requests.Memory(), timeout_s=TREE_S)
    return Memory(dict(sorted(answers.items())), cluster_devices(world), reasons)


def variables(world: World) -> list[TreeLayout]:
    """The arrays and pytrees of arrays among the variables of the first rank that lives.

    Raises:
      JaxClusterError: it gave no answer.
    """
    rank = next((r for r in range(world.num_processes) if r not in world.dead), 0)
    found = unwrap(world.ask([rank], Variables(), timeout_s=TREE_S)[rank])
    return [layout.tree_layout(name, {rank: told}, {}) for name, told in found.items()]
