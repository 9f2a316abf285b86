"""What JAX keeps for a thread: what contexts have set that were entered and not left.

``jax.enable_x64(True).__enter__()`` in a cell holds for the cells that follow, as does
``mesh.__enter__()``. Each such setting is a ``config_ext.Config``, with a value of the process and
one of each thread; a setting with a name is a ``config.State``. Meshes are in ``thread_resources``
as well (jax 0.10.2 and 0.12).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MESHES = "with mesh"
_UNNAMED = ("compute_on_context_manager", "xla_metadata_context_manager")


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Within, what is ours is made with its dtype and values, whatever the cells have set.

    An array that was made in ``jax.enable_x64`` would be cut to 32 bits outside of it, and with
    ``jax_no_tracing`` a new process could make no key. This is public.
    """
    import jax

    with (
        jax.enable_x64(True),
        jax.no_tracing(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.transfer_guard("allow"),
    ):
        yield


@contextlib.contextmanager
def launching_nothing() -> Iterator[None]:
    """Within, this thread's launches raise, as those of a finalizer of what is dropped. Public."""
    import jax

    with jax.no_execution(True):
        yield


def entered() -> dict[str, Any]:
    """What this thread has, by a setting's name; some 5 us. Empty where names have moved."""
    try:
        unset = _unset()
        found = {name: value for name, get in _gets() if (value := get()) is not unset}
        if len(meshes := _resources().stack) > 1:
            found[MESHES] = tuple(one.physical_mesh for one in meshes[1:])
        return found
    except (ImportError, AttributeError):
        return {}


def enter(values: Mapping[str, Any]) -> None:
    """Have this thread have these, too.

    Raises:
      Exception: why it can't.
    """
    states = dict(_states())
    for name, value in values.items():
        if name == MESHES:
            _enter_meshes(value)
        else:
            _set(states[name], value)


def put_back(values: Mapping[str, Any]) -> None:
    """Have this thread have these, and nothing else."""
    now = entered()
    if now.keys() == values.keys() and all(now[name] is values[name] for name in now):
        return
    for name, state in _states():
        if name in now.keys() - values.keys():
            _set(state, _unset())
    if MESHES in now:
        _enter_meshes(())
    enter(values)


def values_of_process(names: Iterable[str] | None = None) -> dict[str, Any]:
    """The values of ``jax.config``'s options without what this thread has; None: of all.

    Raises:
      AttributeError: the names have moved.
    """
    import jax

    holders = jax.config._value_holders
    return {
        name: holder.get_global()
        if hasattr(holder := holders[name], "get_global")
        else holder.value
        for name in (holders if names is None else names)
        if name in holders
    }


def _set(state: Any, value: Any) -> None:
    state.set_local(value)
    if (hook := getattr(state, "_update_thread_local_hook", None)) is not None:
        hook(None if value is _unset() else value)


def _enter_meshes(meshes: Iterable[Any]) -> None:
    from jax._src import config

    resources = _resources()
    resources.stack[1:] = []
    for mesh in meshes:
        resources.stack.append(resources.stack[-1].with_mesh(mesh))
    resources.env = resources.stack[-1]
    present = tuple(one.physical_mesh for one in resources.stack if not one.physical_mesh.empty)
    config.mesh_context_manager.set_local(present)


def _states() -> Iterator[tuple[str, Any]]:
    from jax._src import config

    yield from config.config_states.items()
    for name in _UNNAMED:
        if (state := getattr(config, name, None)) is not None:
            yield name, state


_known: tuple[int, list[tuple[str, Any]]] = (0, [])  # how many there were, and what asks each


def _gets() -> list[tuple[str, Any]]:
    """What tells each one's value for this thread: a hundred, and each cell asks them twice."""
    global _known
    from jax._src import config

    if _known[0] != len(config.config_states):
        gets = [(name, state.get_local) for name, state in _states()]
        _known = len(config.config_states), gets
    return _known[1]


def _unset() -> Any:
    from jax._src import config

    return config.config_ext.unset


def _resources() -> Any:
    from jax._src import mesh

    return mesh.thread_resources


def can_read() -> bool:
    return bool(values_of_process()) and _unset() is not None and bool(_resources().stack)
