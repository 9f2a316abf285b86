"""Hints: the meaning of JAX's errors on a cluster, and what to do about them. Pure."""

from __future__ import annotations

from jaxcluster.model.layout import SEED

EXPLICIT = (
    "jax.make_mesh gives Explicit axes: JAX asks you for a sharding instead of choosing one. Call "
    "jax.set_mesh(mesh) once, and pass out_sharding=P(...), as in jnp.matmul(x, y, "
    "out_sharding=P()) and x.at[0].get(out_sharding=P()). Or leave it to the compiler: "
    "jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))."
)
# A part of JAX's message, and the hint for it.
KIND_HINTS = (
    (
        "spans non-addressable",
        "An array that spans processes can't be fetched by one of them. End the cell with it to "
        "see it whole, or %pull it into the notebook.",
    ),
    (
        "Gathering global non-fully-addressable arrays only supports tiled=True",
        "The array spans processes already, so there is nothing to stack. Use "
        "process_allgather(x, tiled=True), or %pull x.",
    ),
    ("ambiguous how the output should be sharded", EXPLICIT),
    ("Use `.at[...].get(out_sharding=)`", EXPLICIT),
    ("Please enter your `jit` into a mesh context", EXPLICIT),
    (
        "passed to device_put is not the same on each process",
        "The ranks' values differ, or JAX converts them, or they hold NaN: give float32 for "
        f"float64, int32 for int64, and no NaN. {SEED}",
    ),
    (
        "does not support cross-host device transfers",
        "On CPU, device_put sends arrays between processes of one machine only. Between hosts, "
        "use collectives on a mesh of all processes: jax.jit with out_shardings, or ppermute.",
    ),
    (
        "config should be updated before backends are initialized",
        "Ranks get their devices when they start: %jaxcluster stop, then for example %jaxcluster "
        "start --devices-per-process 4.",
    ),
    (
        "RESOURCE_EXHAUSTED: ",
        "%jaxcluster status --memory shows what each device holds.",
    ),
    (
        "failed: unhandled cuda error",
        "NCCL needs GPU memory besides the part that JAX takes: --env "
        "XLA_PYTHON_CLIENT_MEM_FRACTION=0.6 leaves it more. With --env NCCL_DEBUG=WARN "
        "%jaxcluster logs says what has failed.",
    ),
)
