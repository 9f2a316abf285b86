"""Classes that are registered as pytree nodes: how, and to register them again."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from jaxcluster.rank.names import is_own_module
from jaxcluster.rank.private import kinds, needs_names

# The fields of a dataclass; or the functions (flatten, unflatten, flatten with keys).
Registration = dict[str, list[str]] | tuple[Any, ...]

OF_CELLS = "__main__"
_of_class: Any = type.__dict__  # a metaclass of the user's is not asked
FIELDS = {"data_fields", "meta_fields"}
WITH_KEYS = "flatten_with_keys"


@needs_names("saved variables", "new processes have none of the variables of the old ones")
def can_save() -> None:
    """Look whether the names are there that saving needs."""
    from jax._src import tree_util

    entry = tree_util._registry[list]
    _ = entry.to_iter, entry.from_iter, kinds.info_of(jax.jit(len))
    kinds.kinds(), kinds.pjit_names()


def registration_of(cls: type) -> Registration | None:
    """How a class is registered as a pytree node; None for others.

    JAX has no public way to ask (jax 0.10.2 and 0.12: ``tree_util._registry``, where the function
    that flattens a dataclass holds ``data_fields`` and ``meta_fields``, and JAX's own function that
    flattens by one with keys holds that). Without it a restored class that a cell defines must be
    registered again by that cell.
    """
    from jax._src import tree_util

    if (entry := tree_util._registry.get(cls)) is None:
        return None
    flatten, unflatten = entry.to_iter, entry.from_iter
    names = getattr(getattr(flatten, "__code__", None), "co_freevars", ())
    held = dict(zip(names, getattr(flatten, "__closure__", None) or (), strict=False))
    is_jaxs = getattr(flatten, "__module__", "") == tree_util.__name__
    if is_jaxs and held.keys() >= FIELDS:
        return {name: list(held[name].cell_contents) for name in sorted(FIELDS)}
    keyed = held[WITH_KEYS].cell_contents if is_jaxs and WITH_KEYS in held else None
    return (None if keyed else flatten), unflatten, keyed


def registered_by_cells() -> dict[str, tuple[type, Registration]]:
    """The imported classes that cells may have registered, by their names; some 50 us.

    They have done it with a function of theirs, or it is a dataclass of the user's own modules.
    The classes of cells bring their registration along.
    """
    from jax._src import tree_util

    found = {}
    for cls, entry in list(tree_util._registry.items()):
        module, name = (_of_class[one].__get__(cls) for one in ("__module__", "__qualname__"))
        if module == OF_CELLS:
            continue
        pair = entry.to_iter, entry.from_iter
        is_of_cells = any(getattr(one, "__module__", "") == OF_CELLS for one in pair)
        if is_of_cells or (dataclasses.is_dataclass(cls) and is_own_module(module)):
            how = registration_of(cls)
            if how is not None and (is_of_cells or isinstance(how, dict)):
                found[f"{module}.{name}"] = cls, how
    return found


def register(cls: type, how: Registration) -> None:
    """Register a class as another one was, unless it is registered."""
    if registration_of(cls) is not None:
        return
    if isinstance(how, dict):
        data, meta = how["data_fields"], how["meta_fields"]
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        drop = [f.name for f in fields if f.init and f.name not in (*data, *meta)]
        jax.tree_util.register_dataclass(cls, data, meta, drop)
        return
    flatten, unflatten, keyed = how
    if keyed is not None:
        jax.tree_util.register_pytree_with_keys(cls, keyed, unflatten)
    else:
        jax.tree_util.register_pytree_node(cls, flatten, unflatten)
