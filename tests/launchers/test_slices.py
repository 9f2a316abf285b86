"""``jax.make_mesh`` takes the CPU devices of several machines, which plain JAX refuses."""

from __future__ import annotations

import subprocess

from rig import Rig

PROCESS = """
import sys
import numpy as np
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize("h1:4567", 2, int(sys.argv[1]), cluster_detection_method="deactivate")
from jaxcluster.engine.private import coordination
try:
    jax.make_mesh((4,), ("i",))
except ValueError as error:
    print("plain:", error)
assert coordination.join_cpu_slices()
assert coordination.join_cpu_slices()
mesh = jax.make_mesh((4,), ("i",))
there = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
x = jax.make_array_from_callback((4,), there, lambda index: np.arange(4.0)[index])
print("sum", float(x.sum()), {device.slice_index for device in jax.devices()})
"""


def test_make_mesh_takes_the_devices_of_several_machines(hosts: Rig) -> None:
    started = [
        hosts[name].popen(
            *(hosts.python, "-c", PROCESS, str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, name in enumerate(("h1", "h2"))
    ]
    for process in started:
        said, _ = process.communicate(timeout=60)
        assert "plain: `jax.make_mesh` does not support multi-slice topologies" in said, said
        assert "sum 6.0 {0}" in said, said
