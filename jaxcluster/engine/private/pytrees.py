"""Classes that are registered as pytree nodes: how, and to register them again."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from jaxcluster.engine.names import is_own_module
from jaxcluster.engine.private import kinds, needs_names

# The fields of a dataclass; or the functions (flatten, unflatten, flatten with keys).
Registration = dict[str, list[str]] | tuple[Any, ...]

OF_CELLS = "__main__"
_of_class: Any = type.__dict__  # a metaclass of the user's is not asked
REGISTERS = ("_register_pytree_node", "register_pytree_node")
FIELDS = {"data_fields", "meta_fields"}

_keyed: dict[type, Any] = {}  # how a class is flattened with keys; JAX holds all classes too


@needs_names("saved variables", "new processes have none of the variables of the old ones")
def remember_keys() -> None:
    """Note of each class that is registered from now on how it is flattened with keys.

    JAX gives it to C++, and has no way to ask for it. All but dataclasses go through one function
    (jax 0.12: ``tree_util._register_pytree_node``, 0.10.2: ``register_pytree_node``).
    """
    import jax
    from jax._src import tree_util

    name = next((n for n in REGISTERS if hasattr(tree_util, n)), REGISTERS[0])
    original = getattr(tree_util, name)
    _ = tree_util._registry, kinds.info_of(jax.jit(len)), kinds.kinds(), kinds.pjit_names()

    @functools.wraps(original)
    def register(
        nodetype: Any, flatten: Any, unflatten: Any, with_keys: Any = None, **options: Any
    ) -> None:
        original(nodetype, flatten, unflatten, with_keys, **options)
        if with_keys is not None:
            _keyed[nodetype] = with_keys

    for module in (tree_util, jax.tree_util):
        if getattr(module, name, None) is original:
            setattr(module, name, register)


def registration_of(cls: type) -> Registration | None:
    """How a class is registered as a pytree node; None for others.

    JAX has no public way to ask (jax 0.10.2 and 0.12: ``tree_util._registry``, where the function
    that flattens a dataclass holds ``data_fields`` and ``meta_fields``). Without it a restored
    class that a cell defines must be registered again by that cell.
    """
    try:
        from jax._src import tree_util

        entry = tree_util._registry.get(cls)
        if entry is None:
            return None
        flatten, unflatten = entry.to_iter, entry.from_iter
    except (ImportError, AttributeError):
        return None
    names = getattr(getattr(flatten, "__code__", None), "co_freevars", ())
    held = dict(zip(names, getattr(flatten, "__closure__", None) or (), strict=False))
    if getattr(flatten, "__module__", "") == tree_util.__name__ and held.keys() >= FIELDS:
        return {name: list(held[name].cell_contents) for name in sorted(FIELDS)}
    return flatten, unflatten, _keyed.get(cls)


def registered_by_cells() -> dict[str, tuple[type, Registration]]:
    """The imported classes that cells may have registered, by their names; some 50 us.

    They have done it with a function of theirs, or it is a dataclass of the user's own modules.
    The classes of cells bring their registration along.
    """
    try:
        from jax._src import tree_util

        registry = list(tree_util._registry.items())
        functions = {cls: (entry.to_iter, entry.from_iter) for cls, entry in registry}
    except (ImportError, AttributeError):
        return {}
    found = {}
    for cls, pair in functions.items():
        module, name = (_of_class[one].__get__(cls) for one in ("__module__", "__qualname__"))
        if module == OF_CELLS:
            continue
        is_of_cells = any(getattr(one, "__module__", "") == OF_CELLS for one in pair)
        if is_of_cells or (dataclasses.is_dataclass(cls) and is_own_module(module)):
            how = registration_of(cls)
            if how is not None and (is_of_cells or isinstance(how, dict)):
                found[f"{module}.{name}"] = cls, how
    return found


def register(cls: type, how: Registration) -> None:
    """Register a class as another one was, unless it is registered."""
    import jax

    if registration_of(cls) is not None:
        return
    if isinstance(how, dict):
        data, meta = how["data_fields"], how["meta_fields"]
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        drop = [f.name for f in fields if f.init and f.name not in (*data, *meta)]
        jax.tree_util.register_dataclass(cls, data, meta, drop)
        return
    flatten, unflatten, *keyed = how
    if keyed and keyed[0] is not None:
        jax.tree_util.register_pytree_with_keys(cls, keyed[0], unflatten, flatten)
    else:
        jax.tree_util.register_pytree_node(cls, flatten, unflatten)
