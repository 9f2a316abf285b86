"""What can't differ between ranks, so that a new rank may have it from another one."""

from __future__ import annotations

import functools
from types import FunctionType, ModuleType
from typing import Any

from jaxcluster.engine.arrays import check_leaves, is_array

LITERALS = (bool, int, float, complex, str, bytes, type(None))


def spans(value: Any) -> bool:
    """Whether a value holds arrays that span processes, in containers that JAX knows."""
    return any(is_array(one) and not one.is_fully_addressable for one in _leaves(value))


def is_common(value: Any) -> bool:
    """Whether all ranks have the same: no value in it is one rank's own.

    These are modules, functions and classes without values of their own, meshes and shardings. In
    a value with arrays that span processes all arrays do, and Python's values beside them are taken
    for equal, since all ranks give them to the same programs.
    """
    if isinstance(value, type | ModuleType):
        return True
    if (leaves := _leaves(value)) and spans(value):
        return all(
            not one.is_fully_addressable if is_array(one) else type(one) in LITERALS or _holds(one)
            for one in leaves
        )
    return _holds(value)


def _holds(value: Any, depth: int = 8) -> bool:
    """Whether it is a function, a mesh or the like, and what it holds is common as well."""
    import jax

    if depth == 0:
        return False
    if isinstance(value, jax.sharding.Mesh | jax.sharding.Sharding | jax.sharding.PartitionSpec):
        return True
    if isinstance(value, type | ModuleType):
        return True
    held: list[Any]
    if isinstance(value, functools.partial):
        held = [value.func, *value.args, *value.keywords.values()]
    elif type(value) is FunctionType:
        held = [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
        held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        # A default is the same on all ranks where it is the source's: numbers may be a rank's own.
        held = [one for one in held if one is not None and type(one) is not str]
    elif type(value) is type(jax.jit(len)) or isinstance(value, jax.custom_jvp | jax.custom_vjp):
        held = [getattr(value, "__wrapped__", None)]
    elif callable(value) and type(value).__module__ == "builtins":
        return True
    else:
        return is_array(value) and not value.is_deleted() and not value.is_fully_addressable
    return all(_holds(one, depth - 1) for one in held)


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _leaves(value: Any) -> list[Any]:
    import jax

    try:
        check_leaves(value)
        return [one for one in jax.tree.leaves(value) if not (is_array(one) and one.is_deleted())]
    except Exception:  # too many, or a user's class that raises
        return []
