"""JAX's types, arrays of given types, what jitted functions are made of, and pytree nodes."""

from __future__ import annotations

import dataclasses
import functools
import operator
import sys
from types import MethodType
from typing import Any, NamedTuple

import jax
from cloudpickle import cloudpickle

from jaxcluster.rank.names import is_own_module
from jaxcluster.rank.private import needs_names

Registration = functools.partial[Any]  # JAX's public function, but for the class
OF_CELLS = "__main__"
_module: Any = type.__dict__["__module__"]  # a metaclass of the user's is not asked


class Kinds(NamedTuple):
    """Types that JAX has no public names for."""

    array: type
    key: type
    jitted: type


@needs_names("saved variables", "new processes have none of the variables of the old ones")
def can_save() -> None:
    """Look whether the names are there that saving needs."""
    kinds(), registration_of(list), jitted(len, info_of(jax.jit(len)))


@functools.cache
def kinds() -> Kinds:
    """They are (jax 0.10.2 and 0.12: ``array.ArrayImpl`` and ``random.prng.PRNGKeyArray``)."""
    from jax._src.array import ArrayImpl
    from jax._src.random import prng  # a separate package since jax 0.10

    return Kinds(ArrayImpl, prng.PRNGKeyArray, type(jax.jit(len)))


def with_type(array: Any, weak_type: bool, committed: bool) -> Any:
    """The same array, which may span processes, of that type. Nothing is launched.

    ``jax.make_array_from_single_device_arrays`` makes only strong types, and commits the array to
    its devices. It passes both to ``ArrayImpl`` (jax 0.10.2 and 0.12). If that has moved, they
    stay.
    """
    if committed and not weak_type:
        return array
    try:
        aval = array.aval.update(weak_type=weak_type)
        pieces = [shard.data for shard in array.addressable_shards]
        return type(array)(aval, array.sharding, pieces, committed=committed)
    except (AttributeError, TypeError):
        return array


def numpy_view(array: Any) -> Any:
    """The part of an array that numpy can hold: all of it, or the numbers of a PRNG key array.

    JAX's ``key_data`` raises where a cell has set ``jax_no_tracing`` (jax 0.10.2 and 0.12:
    ``_base_array``).
    """
    return getattr(array, "_base_array", array)


def is_imported(value: Any) -> bool:
    """Whether an imported module has this very function or class under its name."""
    module = getattr(value, "__module__", None)
    found: Any = sys.modules.get(str(module)) if module != OF_CELLS else None
    for part in getattr(value, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is value


def number_class(cls: type, number: str) -> None:
    """Have cloudpickle know a class by this number, which it makes at random (cloudpickle 3)."""
    cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[cls] = number
    cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[number] = cls


# --------------------------------------------------------------------------- jitted functions


def info_of(function: Any) -> Any:
    """The options of a jitted function (jax 0.10.2 and 0.12: a ``PjitInfo``)."""
    return function._jit_info


def jitted(function: Any, info: Any) -> Any:
    """A function, jitted with the options that another one had."""
    from jax._src import pjit
    from jax._src.sharding_impls import UNSPECIFIED

    def leaves(name: str) -> tuple[Any, ...]:
        kind = type(UNSPECIFIED)
        return tuple(UNSPECIFIED if type(one) is kind else one for one in getattr(info, name))

    known = {name: leaves(name) for name in ("in_shardings_leaves", "out_shardings_leaves")}
    make: Any = pjit._cpp_pjit
    return make(function, info._replace(**known))


# --------------------------------------------------------------------------- pytree nodes


def registration_of(cls: type) -> Registration | None:
    """How a class is registered as a pytree node; None for others.

    JAX has no public way to ask: ``tree_util._registry`` is read (jax 0.10.2 and 0.12). A
    dataclass's flatten function holds ``data_fields`` and ``meta_fields`` there. If a class has
    only a flatten function with keys, JAX's own flatten function holds it.
    """
    from jax._src import tree_util

    if (entry := tree_util._registry.get(cls)) is None:
        return None
    flatten, how = entry.to_iter, {"unflatten_func": entry.from_iter}
    if getattr(flatten, "__module__", "") == tree_util.__name__ and flatten.__closure__:
        names = flatten.__code__.co_freevars
        held = dict(zip(names, (cell.cell_contents for cell in flatten.__closure__), strict=True))
        if "data_fields" in held:
            its = {name: list(held[name]) for name in ("data_fields", "meta_fields")}
            fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
            known = {*its["data_fields"], *its["meta_fields"]}
            drop = [field.name for field in fields if field.init and field.name not in known]
            return Registration(jax.tree_util.register_dataclass, **its, drop_fields=drop)
        if keyed := held.get("flatten_with_keys"):
            make: Any = jax.tree_util.register_pytree_with_keys
            return Registration(make, flatten_with_keys=keyed, **how)
    return Registration(jax.tree_util.register_pytree_node, flatten_func=flatten, **how)


def registered_by_cells() -> list[tuple[type, Registration]]:
    """The imported classes that cells may have registered; some 50 us.

    They have done it with a function of theirs, or it is a dataclass of the user's own modules.
    The classes of cells bring their registration along.
    """
    from jax._src import tree_util

    found = []
    for cls, entry in list(tree_util._registry.items()):
        module: str = _module.__get__(cls)
        functions = entry.to_iter, entry.from_iter
        is_by_cell = OF_CELLS in {getattr(one, "__module__", "") for one in functions}
        if module != OF_CELLS and (is_by_cell or is_own_module(module)):
            how = registration_of(cls)
            if how is not None and (is_by_cell or is_by_fields(how)):
                found.append((cls, how))
    return found


def is_by_fields(how: Registration) -> bool:
    """Whether it is a dataclass's, which needs no other function."""
    return how.func is jax.tree_util.register_dataclass


def can_repeat(how: Registration) -> bool:
    """Whether cells or JAX itself have its functions; else its library registers a class again."""
    from jax._src import tree_util

    def is_known(function: Any) -> bool:
        names = getattr(function, "__globals__", {})  # equinox lies about __module__
        is_theirs = names.get("__name__") in (OF_CELLS, tree_util.__name__)
        return is_theirs or isinstance(function, (MethodType, operator.methodcaller))

    return is_by_fields(how) or any(map(is_known, how.keywords.values()))


def register(cls: type, how: Registration) -> None:
    """Register a class as another one was, unless it is registered."""
    if registration_of(cls) is None:
        how(cls)
