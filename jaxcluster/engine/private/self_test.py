"""Which private names of JAX are where this package expects them, and what it costs where not.

``%jaxcluster doctor`` and a start show it, and a unit test fails. ``python -m
jaxcluster.engine.private.self_test`` prints what is missing and its cost as JSON, for those who may
not import jax.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxcluster.engine.private import (
    compilations,
    coordination,
    hostvalues,
    is_there,
    kinds,
    programs,
    pytrees,
    transfers,
)


def _gloo_address() -> bool:
    from jax._src import xla_bridge
    from jax._src.lib import _jax

    return hasattr(_jax, "make_gloo_tcp_collectives") and xla_bridge._jax is _jax


def _one_slice() -> bool:
    from jax._src import sharding_impls

    constants = sharding_impls.make_mesh.__code__.co_consts
    return is_there("lib:_jax.Device.__getattr__") and "slice_index" in constants


def _launches() -> bool:
    return hasattr(programs.hlo_print_options(), "fingerprint") and is_there(
        "interpreters.pxla:UnloadedMeshExecutable.build_unsafe_call "
        "interpreters.pxla:MeshExecutable.create_cpp_call "
        "interpreters.pxla:MeshComputation.compile "
        "pjit:_get_fastpath_data"
    )


def _saved_variables() -> bool:
    import jax

    registers = any(is_there(f"tree_util:{name}") for name in pytrees.REGISTERS)
    is_known = registers and hasattr(jax.jit(len), "_jit_info")
    return is_known and is_there(f"tree_util:_registry {kinds.NAMES}")


# What each group of private names is for, what happens where they have moved, and how to look.
PROBES: dict[str, tuple[str, str | Callable[[], bool]]] = {
    "gloo address": (
        "CPU collectives use this host's name, which must resolve to its own address",
        _gloo_address,
    ),
    "one slice": ("jax.make_mesh refuses the CPU devices of several machines", _one_slice),
    "launches": (
        "launches are not checked: a program that ranks launch differently hangs them",
        _launches,
    ),
    "saved variables": (
        "new processes have none of the variables of the old ones",
        _saved_variables,
    ),
    "host values": (
        "values that should be equal on all ranks are compared only where arrays are pulled",
        hostvalues.NAMES,
    ),
    "waits": (
        "a wait in JAX's coordination service can't be stopped",
        coordination.can_announce_waits,
    ),
    "coordinator process": (
        "rank 0 hosts JAX's coordinator, and its death ends all ranks",
        coordination.can_coordinate_elsewhere,
    ),
    "transfers": (
        "device_put from process to process is refused on CPU, and not checked on GPU and TPU",
        transfers.NAMES,
    ),
    "compiled programs": (
        "new processes compile all programs again",
        compilations.can_keep,
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
