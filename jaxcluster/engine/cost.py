"""What a call would cost: it is traced, lowered and compiled here, and never launched.

The call's own arguments are evaluated while JAX traces, so that nothing in them is launched either.
A name stands for its value, with its sharding; what is computed of arrays has a shape alone.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import functools
import os
import re
import time
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.engine import arrays, library_code
from jaxcluster.engine.fingerprint import of_lowered
from jaxcluster.engine.private import compilations

if TYPE_CHECKING:
    from jaxcluster.engine.journal import Journal

NAME = "__jaxcluster_cost__"  # in the user's namespace, while the cell runs
MOST_ARGUMENTS = 2_000  # that are told of, the largest
MEMORY = {
    "arguments": "argument_size_in_bytes",
    "outputs": "output_size_in_bytes",
    "donated": "alias_size_in_bytes",
    "temporaries": "temp_size_in_bytes",
    "code": "generated_code_size_in_bytes",
}
_FILE = re.compile(r'^\d+ "([^"\n]*)"$|source_file="([^"]*)"', re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """A call, with all that it takes evaluated. ``bound``: so many arguments are not written."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bound: int = 0


@dataclass
class Estimator:
    """What the cell's call is given to in place of being made. ``found`` is what came of it."""

    rank: int
    is_first: bool
    cells: dict[str, int]
    journal: Journal
    found: wire.StepCost | None = None

    @staticmethod
    def taken(function: Any, /, *args: Any, **kwargs: Any) -> Call:
        return Call(function, args, kwargs)

    def __call__(self, make: Callable[[], Call]) -> None:
        before = _launched(self.journal)
        call, abstract = _evaluated(make)
        found = _compiled(call, self.is_first, self.rank, self.cells)
        launches = _launched(self.journal) - before
        self.found = wire.StepCost(launches=launches, abstract=abstract, **found)


class Rewrite(ast.NodeTransformer):
    """``step(a)`` becomes ``NAME(lambda: NAME.taken(step, a))``, on the same lines."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        last = node.body[-1] if node.body else None
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
            last.value = ast.fix_missing_locations(_staged(last.value))
        else:
            node.body = []  # it would be run
        return node


def _staged(call: ast.Call) -> ast.Call:
    def name() -> ast.Name:
        return ast.copy_location(ast.Name(NAME, ast.Load()), call)

    taken = ast.copy_location(ast.Attribute(name(), "taken", ast.Load()), call)
    inner = ast.copy_location(ast.Call(taken, [call.func, *call.args], call.keywords), call)
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.copy_location(
        ast.Call(name(), [ast.copy_location(ast.Lambda(nothing, inner), call)], []), call
    )


@contextlib.contextmanager
def staged(shell: Any, estimator: Estimator) -> Iterator[None]:
    """Inside it a cell that is a call is given to the estimator."""
    rewrite = Rewrite()
    shell.ast_transformers.append(rewrite)
    shell.user_ns[NAME] = estimator
    try:
        yield
    finally:
        shell.user_ns.pop(NAME, None)
        shell.ast_transformers.remove(rewrite)


def _launched(journal: Journal) -> int:
    return sum(count for count, _ in journal.launches().values())


# --------------------------------------------------------------------------- the call


def _evaluated(make: Callable[[], Call]) -> tuple[Call, dict[str, int]]:
    """The call, its arrays that would have to be computed as shapes alone; how many of which."""
    import jax

    calls: list[Call] = []
    leaves: list[Any] = []
    treedefs: list[Any] = []

    def evaluate() -> list[Any]:
        call = make()
        flat, treedef = jax.tree.flatten((call.args, call.kwargs))
        calls.append(call)
        leaves.extend(flat)
        treedefs.append(treedef)
        return [leaf for leaf in flat if arrays.is_tracer(leaf)]

    shapes = iter(jax.eval_shape(evaluate))
    abstract = [arrays.is_tracer(leaf) for leaf in leaves]
    both = zip(leaves, abstract, strict=True)
    whole = [next(shapes) if is_abstract else leaf for leaf, is_abstract in both]
    args, kwargs = jax.tree.unflatten(treedefs[0], whole)
    counted: dict[str, int] = {}
    marks = jax.tree.unflatten(treedefs[0], abstract)
    for at, argument in [*enumerate(marks[0]), *marks[1].items()]:
        if count := sum(jax.tree.leaves(argument)):
            counted[str(at)] = count
    return Call(calls[0].function, args, kwargs), counted


def _compiled(call: Call, is_first: bool, rank: int, cells: dict[str, int]) -> dict[str, Any]:
    """Fields of a ``StepCost``."""
    call = _unbound(call)
    function, args, kwargs = _jitted(call)
    started = time.perf_counter()
    trace = getattr(function, "trace", None)
    traced = trace(*args, **kwargs) if trace is not None else None
    lowered = traced.lower() if traced is not None else function.lower(*args, **kwargs)
    lowered_at = time.perf_counter()
    with compilations.fresh():
        compiled = lowered.compile()
    told: dict[str, Any] = {
        "rank": rank,
        "name": str(getattr(call.function, "__name__", "") or "a function"),
        "digest": _digest(lowered),
        "lower_s": lowered_at - started,
        "compile_s": time.perf_counter() - lowered_at,
    }
    # Other libraries' functions take their arguments in an order of their own.
    written = replace(call, args=args if traced is not None else ())
    return told | (_told(traced, compiled, written, cells) if is_first else {})


def _unbound(call: Call) -> Call:
    """With what a method, a partial or a callable pytree holds among its arguments.

    It would be a constant of the program else, and none may span processes.
    """
    import jax

    function = call.function
    if callable(getattr(function, "lower", None)):
        return call
    if isinstance(function, functools.partial):
        given, args = function.args, call.args
        kwargs = {**function.keywords, **call.kwargs}
        return _unbound(Call(function.func, given + args, kwargs, call.bound + len(given)))
    if isinstance(function, types.MethodType):
        held, inner = function.__self__, function.__func__
    elif not jax.tree_util.all_leaves([function]):
        held, inner = function, type(function).__call__
    else:
        return call
    return Call(inner, (held, *call.args), call.kwargs, call.bound + 1)


def _names(call: Call, count: int) -> list[str]:
    """Of each argument that the program takes by position its number in the call; "": not known.

    Args:
      count: how many it takes so. Static ones are not among them: which these are only shows by
        their kinds.
    """
    import jax

    def holds_arrays(argument: Any) -> bool:
        return any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(argument))

    every = range(len(call.args))
    some = [at for at in every if holds_arrays(call.args[at])]
    taken = next((one for one in (every, some) if len(one) == count), None)
    if taken is None:
        return [""] * count
    return ["bound" if at < call.bound else str(at - call.bound) for at in taken]


def _jitted(call: Call) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A function that can be lowered, and what it takes.

    One that is not jitted is, with what is not an array as it is: it may be a shape, or a name.
    """
    import jax

    function = call.function
    if callable(getattr(function, "lower", None)):
        return function, call.args, call.kwargs
    leaves, treedef = jax.tree.flatten((call.args, call.kwargs))
    dynamic = [hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves]

    def of_arrays(*args: Any, **kwargs: Any) -> Any:
        given = jax.tree.leaves((args, kwargs), is_leaf=lambda leaf: leaf is None)
        merged = [
            new if is_dynamic else old
            for new, old, is_dynamic in zip(given, leaves, dynamic, strict=True)
        ]
        args, kwargs = jax.tree.unflatten(treedef, merged)
        return function(*args, **kwargs)

    of_arrays.__name__ = str(getattr(function, "__name__", "call"))
    both = zip(leaves, dynamic, strict=True)
    kept = [leaf if is_dynamic else None for leaf, is_dynamic in both]
    args, kwargs = jax.tree.unflatten(treedef, kept)
    return jax.jit(of_arrays), args, kwargs


def _digest(lowered: Any) -> str:
    try:
        return of_lowered(lowered.compiler_ir("stablehlo")).hex()
    except Exception:  # of another library's: then nothing is said of it
        return ""


# --------------------------------------------------------------------------- what is told


def _told(traced: Any, compiled: Any, call: Call, cells: dict[str, int]) -> dict[str, Any]:
    inner = getattr(compiled, "compiled", compiled)  # equinox has JAX's own in there
    text = str(inner.as_text() or "")
    arguments, meshes = _arguments(inner, call)
    meshes += _meshes_in([getattr(inner, "output_shardings", None)])
    devices = next(filter(None, map(_devices_of, meshes)), [])
    jaxpr = getattr(traced, "jaxpr", None)
    meshes += _meshes_in([jaxpr]) if jaxpr is not None else []
    ids = [device.id for device in devices]
    analysis: Any = None
    with contextlib.suppress(Exception):  # a platform that has none
        analysis = inner.cost_analysis()
        analysis = analysis[0] if isinstance(analysis, list) else analysis
    return {
        "text": packed(text),
        "files": named_files(text, cells),
        "meshes": _infos(meshes, ids),
        "processes": [device.process_index for device in devices],
        "arguments": arguments,
        "flops": analysis.get("flops", 0.0) if analysis else None,
        "memory": _memory(inner),
    }


def packed(text: str) -> str:
    """A compiled text as messages have it."""
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


def named_files(text: str, cells: dict[str, int]) -> dict[str, list[Any]]:
    """What ``StepCost.files`` says of the files that a compiled text names."""
    names = {one or other for one, other in _FILE.findall(text)}
    numbers = {os.path.basename(file): number for file, number in cells.items()}
    return {
        name: [
            numbers.get(os.path.basename(name)),
            library_code.short_name(name),
            library_code.is_telling_file(name),
        ]
        for name in sorted(names)
    }


def _memory(compiled: Any) -> dict[str, int]:
    with contextlib.suppress(Exception):  # a platform that has none
        found = compiled.memory_analysis()
        return {kind: int(getattr(found, field, 0) or 0) for kind, field in MEMORY.items()}
    return {}


def _arguments(compiled: Any, call: Call) -> tuple[list[wire.CostArgument], list[Any]]:
    """The arrays that the program takes, the largest first, and their meshes."""
    import jax

    with contextlib.suppress(Exception):  # what another library returns
        treedef: Any
        infos, treedef = jax.tree_util.tree_flatten_with_path(compiled.args_info)
        shardings = treedef.flatten_up_to(compiled.input_shardings)
        found, meshes = [], []
        names = _names(call, len(compiled.args_info[0]))
        for (path, info), sharding in zip(infos, shardings, strict=True):
            if sharding is None:  # it is not used
                continue
            if isinstance(mesh := getattr(sharding, "mesh", None), jax.sharding.Mesh):
                meshes.append(mesh)
            _, at, *rest = path  # of the arguments' tuple, or of those by name
            name = names[at.idx] if hasattr(at, "idx") else str(at.key)
            found.append(_argument(name, rest, info, sharding, mesh))
        found.sort(key=lambda one: -one.nbytes)
        return found[:MOST_ARGUMENTS], meshes
    return [], []


def _argument(
    at: str, path: Sequence[Any], info: Any, sharding: Any, mesh: Any
) -> wire.CostArgument:
    shape = tuple(info.shape)
    spec = getattr(sharding, "spec", None)
    size = getattr(info.dtype, "itemsize", 0)
    for side in sharding.shard_shape(shape):
        size *= side
    return wire.CostArgument(
        at=at,
        path="".join(map(str, path)),
        shape=list(shape),
        dtype=str(info.dtype),
        nbytes=size,
        mesh={str(name): side for name, side in mesh.shape.items()} if mesh is not None else {},
        split=arrays.split_of(spec, len(shape)) if spec is not None else [],
    )


def _devices_of(mesh: Any) -> list[Any]:
    """None of one that is abstract: it has no devices, or they are None."""
    import jax

    devices = list(mesh.devices.flat) if isinstance(mesh, jax.sharding.Mesh) else []
    return devices if None not in devices else []


def _infos(meshes: Sequence[Any], ids: list[int]) -> list[wire.MeshInfo]:
    """Equal ones once. One without devices has the program's."""
    found: dict[Any, wire.MeshInfo] = {}
    for mesh in meshes:
        names, sizes = list(map(str, mesh.axis_names)), list(mesh.axis_sizes)
        devices = [device.id for device in _devices_of(mesh)] or ids
        key = (*names, *sizes, *devices)
        if sizes and key not in found:
            found[key] = wire.MeshInfo("", names, sizes, [], [*devices])
    at = {device: place for place, device in enumerate(ids)}
    return [
        wire.MeshInfo("", one.axis_names, one.axis_sizes, [], [at[id] for id in one.devices])
        for one in found.values()
        if at.keys() >= set(one.devices)
    ]


def _meshes_in(values: Any) -> list[Any]:
    """The meshes that shardings or a jaxpr mention."""
    import jax

    found: list[Any] = []
    seen: set[int] = set()

    def look(value: Any) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, jax.sharding.Mesh | jax.sharding.AbstractMesh):
            found.append(value)
        elif isinstance(value, jax.sharding.Sharding):
            look(getattr(value, "mesh", None))
        elif isinstance(value, list | tuple):
            for one in value:
                look(one)
        elif isinstance(value, dict):
            look(list(value.values()))
        elif hasattr(value, "jaxpr"):
            look(value.jaxpr)
        elif hasattr(value, "eqns"):
            for equation in value.eqns:
                look(list(equation.params.values()))

    look(values)
    return found
