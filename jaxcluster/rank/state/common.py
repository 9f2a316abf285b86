"""What can't differ between ranks, so that a new rank may have it from another one."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import textwrap
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import jax
import numpy as np

from jaxcluster.rank.arrays import is_array, leaves_of
from jaxcluster.rank.private.kinds import is_imported, kinds

LITERALS = (bool, int, float, complex, str, bytes, type(None))
OF_JAX = jax.sharding.Mesh, jax.sharding.Sharding, jax.sharding.PartitionSpec
COMMON = type, ModuleType, BuiltinFunctionType, np.dtype, np.ufunc, *OF_JAX
DEPTH = 12  # of functions that hold functions


def can_be_anothers(value: Any, spans: bool) -> bool:
    """Whether all ranks have the same value.

    All have the same modules, functions and classes without values of their own, meshes and
    shardings. In a value with arrays that span processes all arrays must, and Python's values
    beside them are taken for equal, since all ranks give them to the same programs.

    Args:
      spans: it has arrays that spanned processes.
    """
    leaves: list[Any] = []
    with contextlib.suppress(Exception):  # too many, or a user's class that raises
        leaves = [leaf for _, leaf in leaves_of(value)]
    if not spans:
        return not any(map(is_array, leaves)) and _is_common(value)
    others = [one for one in leaves if type(one) not in LITERALS and not is_array(one)]
    here = {one.is_fully_addressable for one in leaves if is_array(one)}  # all, of a single process
    return len(here) == 1 and all(map(_is_common, others))


def _is_common(value: Any, by_library: bool = False, depth: int = DEPTH) -> bool:
    """Whether it is a function, a mesh or the like, and what it holds is common as well.

    Args:
      by_library: a library's function holds it. Options there, as the ``argnums`` of a gradient,
        are no values of the rank's own.
    """
    if isinstance(value, COMMON) or (callable(value) and is_imported(value)):
        return True
    if by_library and type(value) in (*LITERALS, object):
        return True
    held: list[Any]
    if isinstance(value, functools.partial):
        by_library = is_imported(value.func)
        held = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, (kinds().jitted, jax.custom_jvp, jax.custom_vjp)):
        held = [getattr(value, "__wrapped__", None)]
    elif isinstance(value, FunctionType):
        by_library = value.__globals__.get("__name__") != "__main__"
        held = [one for cell in value.__closure__ or () for one in contents(cell)]
        held = [one for one in held if one is not None]
        defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        held += defaults if defaults and not _has_literals(value) else []
    elif isinstance(value, tuple) and (value or by_library):  # an optimizer is one of functions
        held = list(value)
    elif isinstance(value, dict) and by_library:
        held = list(value.values())
    else:
        return False
    return depth > 0 and all(_is_common(one, by_library, depth - 1) for one in held)


def contents(cell: Any) -> list[Any]:
    """What a function's cell holds, if it is set."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _has_literals(function: FunctionType) -> bool:
    """Whether a function's defaults are those that its source has, on any rank."""
    with contextlib.suppress(OSError, SyntaxError, ValueError, IndexError, AttributeError):
        given: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        for one in filter(None, (*given.args.defaults, *given.args.kw_defaults)):
            ast.literal_eval(one)
        return True
    return False
