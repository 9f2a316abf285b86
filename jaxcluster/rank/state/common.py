"""What can't differ between ranks, so that a new rank may have it from another one."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from jaxcluster.engine.arrays import check_leaves, is_tracer
from jaxcluster.engine.private.kinds import is_imported, kinds

LITERALS = (bool, int, float, complex, str, bytes, type(None))
DEPTH = 12  # of functions that hold functions


def judge(value: Any) -> tuple[bool, bool]:
    """Whether a value has arrays that span processes, and whether all ranks have the same value.

    All have the same modules, functions and classes without values of their own, meshes and
    shardings. In a value with arrays that span processes all arrays must, and Python's values
    beside them are taken for equal, since all ranks give them to the same programs.
    """
    import jax

    leaves = _leaves(value)
    kinds = {kind for kind in set(map(type, leaves)) if issubclass(kind, jax.Array)}
    spanning = [
        not one.is_fully_addressable
        for one in leaves
        if type(one) in kinds and not is_tracer(one) and not one.is_deleted()
    ]
    if any(spanning):
        others = [one for one in leaves if type(one) not in kinds and type(one) not in LITERALS]
        return True, all(spanning) and all(map(_is_common, others))
    return False, not kinds and _is_common(value)


def _is_common(value: Any, by_library: bool = False, depth: int = DEPTH) -> bool:
    """Whether it is a function, a mesh or the like, and what it holds is common as well.

    Args:
      by_library: a library's function holds it. Options there, as the ``argnums`` of a gradient,
        are no values of the rank's own.
    """
    import jax

    sharding = jax.sharding
    common = type, ModuleType, BuiltinFunctionType, np.dtype, np.ufunc
    if isinstance(value, (*common, sharding.Mesh, sharding.Sharding, sharding.PartitionSpec)):
        return True
    if by_library and type(value) in (*LITERALS, object):
        return True
    if depth == 0:
        return False
    held: list[Any]
    if isinstance(value, functools.partial):
        by_library = is_imported(value.func)
        held = [value.func, *value.args, *value.keywords.values()]
    elif type(value) is FunctionType:
        if is_imported(value):
            return True
        by_library = value.__globals__.get("__name__") != "__main__"
        held = [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        held += [] if not defaults or _are_literals(value) else defaults
    elif isinstance(value, (kinds().jitted, jax.custom_jvp, jax.custom_vjp)):
        if is_imported(value):
            return True
        held = [getattr(value, "__wrapped__", None)]
    elif isinstance(value, tuple) and (value or by_library):  # an optimizer is one of functions
        held = list(value)
    elif isinstance(value, dict) and by_library:
        held = list(value.values())
    else:
        return False
    return all(_is_common(one, by_library, depth - 1) for one in held)


def _are_literals(function: FunctionType) -> bool:
    """Whether a function's defaults are those that its source has, on any rank."""
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        if not isinstance(node, ast.FunctionDef):
            return False
        for one in filter(None, (*node.args.defaults, *node.args.kw_defaults)):
            ast.literal_eval(one)
    except (OSError, SyntaxError, ValueError, IndexError):
        return False
    return True


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _leaves(value: Any) -> list[Any]:
    import jax

    try:
        check_leaves(value)
        found: list[Any] = jax.tree.leaves(value)
        return found
    except Exception:  # too many, or a user's class that raises
        return []
