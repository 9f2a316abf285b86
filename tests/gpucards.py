"""This machine's NVIDIA cards, for tests/gpu, and what is asked of a cluster on them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from importlib.metadata import distributions
from typing import Any

import jaxcluster
from jaxcluster.host.facts import gpu_plugin_installed, host_gpus
from jaxcluster.plan.placement import SHARE_GPU
from jaxcluster.plan.versions import release

SETUP = """
import jax, jax.numpy as jnp, numpy as np, time
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def spread(values, where=split):
    return jax.make_array_from_callback(values.shape, where, lambda index: values[index])
g = spread(np.arange(16.0))
w = spread(np.arange(5.0), whole)
total = jax.jit(lambda v: v.sum())
largest = jax.jit(lambda v: v.max())
history = [1.0, 2.0]
r = jax.process_index()
assert float(total(g)) == 120.0
"""


@dataclass(frozen=True)
class Cards:
    """What the tests run on.

    Attributes:
      visible: the cards, as CUDA names them.
      num_ranks: how many ranks they carry.
      options: a start's, for that.
      why_one: why it is one rank; empty where it is more.
    """

    visible: tuple[str, ...]
    num_ranks: int
    options: dict[str, Any] = field(default_factory=dict)
    why_one: str = ""

    def start(self, name: str, **more: Any) -> jaxcluster.Cluster:
        """A cluster on these cards, with variables that ``check_whole`` knows."""
        env = {**self.options.get("env", {}), **more.pop("env", {})}
        wanted = {"timeout_s": 180.0, **self.options, **more, "env": env, "name": name}
        started = jaxcluster.start(self.num_ranks, **wanted)
        try:
            started.run(SETUP, show=False)
        except BaseException:
            started.stop()
            raise
        return started


def find_cards() -> Cards | str:
    """The cards of this machine; else why there are none to test on."""
    if os.environ.get("JAXCLUSTER_GPU_TESTS") == "cpu":
        return Cards((), 2, {"platform": "cpu"})
    visible = tuple(host_gpus(os.environ))
    if not visible or shutil.which("nvidia-smi") is None:
        return "there is no NVIDIA card here (no GPU is visible, or no nvidia-smi)"
    if not gpu_plugin_installed():
        return 'there is a GPU, and jax has no CUDA plugin: pip install "jax[cuda12]"'
    options: dict[str, Any] = {"platform": "cuda", "devices_per_process": 1}
    if len(visible) > 1:
        return Cards(visible, 2, options)
    wheels = [d for d in distributions() if d.name.startswith("nvidia-nccl-cu")]
    if not any(release(wheel.version) >= (2, 30) for wheel in wheels):
        why = "one card, and NCCL refuses two ranks on it before 2.30"
        return Cards(visible, 1, options, why)
    return Cards(visible, 2, {**options, "env": {SHARE_GPU: "1"}})


def check_whole(cluster: jaxcluster.Cluster) -> None:
    """What all ranks share is there on all of them, and collectives compute right."""
    source = "print(float(total(w)), history, float(total(spread(np.arange(16.0)))))"
    record = cluster.run(source, show=False)
    n = len(cluster.record.pids)
    assert [record.stdout(rank) for rank in range(n)] == ["10.0 [1.0, 2.0] 120.0\n"] * n
