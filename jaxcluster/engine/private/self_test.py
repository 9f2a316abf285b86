"""Which private names of JAX are where this package expects them, and what it costs where not.

``%jaxcluster doctor`` and a start show it, and a unit test fails. ``python -m
jaxcluster.engine.private.self_test`` prints what is missing and its cost as JSON, for those who may
not import jax.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxcluster.engine.private import (
    arrays,
    compilations,
    contexts,
    coordination,
    hostvalues,
    is_there,
    programs,
    pytrees,
    transfers,
)


def _gloo_address() -> bool:
    from jax._src import xla_bridge
    from jax._src.lib import _jax

    return _has(_jax, "make_gloo_tcp_collectives") and getattr(xla_bridge, "_jax", None) is _jax


def _one_slice() -> bool:
    from jax._src import sharding_impls
    from jax._src.lib import _jax

    constants = sharding_impls.make_mesh.__code__.co_consts
    return _has(_jax.Device, "__getattr__") and "slice_index" in constants


def _launch_journal() -> bool:
    from jax._src import pjit, tree_util
    from jax._src.interpreters import pxla

    return (
        _has(programs.hlo_print_options(), "fingerprint")
        and _has(pxla.UnloadedMeshExecutable, "build_unsafe_call")
        and _has(pxla.MeshExecutable, "create_cpp_call")
        and _has(pxla.MeshComputation, "compile")
        and _has(pjit, "_get_fastpath_data")
        and _has(tree_util.dispatch_registry, "register_node")
    )


def _replay() -> bool:
    from jax._src.interpreters import pxla
    from jax.experimental import serialize_executable

    fields = {f.name for f in dataclasses.fields(pxla.UnloadedMeshExecutable)}
    needed = {"input_avals", "input_shardings", "device_list", "keepalive"}
    return needed <= fields and _has(serialize_executable, "_JaxPjrtPickler", "_JaxPjrtUnpickler")


def _saved_variables() -> bool:
    from jax._src import tree_util
    from jax._src.lax import lax

    registers = any(_has(tree_util, name) for name in pytrees.REGISTERS)
    return registers and _has(tree_util, "_registry") and _has(lax, "_convert_element_type")


def _coordination_client() -> bool:
    from jax._src import distributed

    return _has(distributed.global_state, "client")


def _fast_paths() -> bool:
    from jax._src import pjit
    from jax._src.lib import _jax

    return _has(pjit, "_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes") and _has(
        _jax.PjitFunctionCache, "clear_all"
    )


def _refused_calls() -> bool:
    from jax._src import api, distributed

    return _has(api, "clear_backends") and _has(distributed, "shutdown")


def _device_put_hint() -> bool:
    from jax._src import dispatch
    from jax.experimental import multihost_utils

    constants = dispatch._device_put_sharding_impl.__code__.co_consts
    told = any(isinstance(c, str) and arrays.OF_DEVICE_PUT in c for c in constants)
    return told and _has(multihost_utils, "assert_equal")


def _option_definitions() -> bool:
    import jax

    return _has(type(jax.config), "add_option")


def _has(owner: Any, *names: str) -> bool:
    return all(hasattr(owner, name) for name in names)


# What each group of private names is for, what happens where they have moved, and how to look.
PROBES: dict[str, tuple[str, Callable[[], bool]]] = {
    "gloo address": (
        "CPU collectives use this host's name, which must resolve to its own address",
        _gloo_address,
    ),
    "one slice": ("jax.make_mesh refuses the CPU devices of several machines", _one_slice),
    "launch journal": (
        "ranks that break lockstep are not found; hangs show only in stacks",
        _launch_journal,
    ),
    "replay of launches": (
        "ranks need new processes to come back into lockstep, which takes longer",
        _replay,
    ),
    "saved variables": (
        "restored scalars lose their weak type; classes must be registered again",
        _saved_variables,
    ),
    "copies": (
        "values that should be equal on all ranks are compared only where arrays are pulled",
        hostvalues.can_hear,
    ),
    "coordinator process": (
        "rank 0 hosts JAX's coordinator, and its death ends all ranks",
        coordination.can_coordinate_elsewhere,
    ),
    "coordination client": ("there is no strict mode", _coordination_client),
    "fast paths": ("each switch of strict mode makes all programs compile again", _fast_paths),
    "transfers": (
        "device_put from process to process is refused on CPU, and not recorded on GPU and TPU",
        transfers.can_record,
    ),
    "refused calls": (
        "jax.extend.backend.clear_backends() leaves ranks that can no longer compute",
        _refused_calls,
    ),
    "option definitions": (
        "a restart sets the options that modules added to jax.config to their defaults",
        _option_definitions,
    ),
    "contexts": (
        "contexts of JAX that a cell leaves entered are neither undone nor kept",
        contexts.can_read,
    ),
    "compiled programs": (
        "new processes compile all programs again",
        compilations.can_keep,
    ),
    "device_put hint": (
        "there is no hint where device_put compares large arrays on all processes",
        _device_put_hint,
    ),
}


def self_test() -> dict[str, bool]:
    """Which private names are where this package expects them. Starts no backend."""
    return {name: is_there(look) for name, (_, look) in PROBES.items()}


def missing() -> dict[str, str]:
    """What it costs that private names have moved, by what they are for."""
    return {name: PROBES[name][0] for name, found in self_test().items() if not found}


if __name__ == "__main__":
    import json

    import jax  # noqa: F401  # one that can't be imported is to be told as that

    print(json.dumps(missing()))
