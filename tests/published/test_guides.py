"""JAX's own guides to sharding, cell by cell as they stand: on ranks, and in plain processes.

Their cells are made for one process with 8 devices, so some fail where there are 4 with 2 each:
they fail on ranks as they fail in plain processes. What no cell may end in is what is ours: a
divergence, a rank that hangs or dies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import plaincells
import pytest
from helpers import Home

import jaxcluster
from jaxcluster.errors import CellFailed

pytestmark = pytest.mark.timeout(1800)

GUIDES = (
    "docs/notebooks/shard_map.md",
    "docs/parallel.md",
    "docs/new_docs/201/shard-map.md",
    "docs/new_docs/201/sharding.md",
    "docs/multi_process.md",
    "docs/distributed_data_loading.md",
)
# What is measured, drawn to a terminal's width, or begins processes; and a package of its own.
LEFT_OUT = ("timeit", "visualize", "jax.distributed", "XLA_FLAGS", "jax_num_cpu_devices", "ds =")
# Transfers between processes: ranks make them on CPU too, where plain JAX refuses them.
OF_OURS = ("sharding_second_half", "device_put(mb, d)")
BEGIN = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils
jax.set_mesh(Mesh(np.empty((), dtype=object), ()))
"""


@pytest.fixture
def ranks() -> Iterator[jaxcluster.Cluster]:
    """A cluster for each guide: names of one are not there in another, as in plain processes."""
    home = Home.make()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.variables.items():
            patch.setenv(name, value)
        with jaxcluster.start(4, devices_per_process=2, timeout_s=180) as running:
            yield running
    home.remove()


def cells_of(text: str) -> list[str]:
    found = re.findall(r"^```(?:\{code-cell\}[^\n]*|python)\n(.*?)^```", text, re.S | re.M)
    cells = [re.sub(r"^:.*\n", "", cell, flags=re.M) for cell in found]
    return [BEGIN, *(cell for cell in cells if not any(part in cell for part in LEFT_OUT))]


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guides_cells_go_as_in_plain_processes(
    ranks: jaxcluster.Cluster, source: Callable[[str, str], str], guide: str
) -> None:
    cells = cells_of(source("jax-ml/jax", guide))
    if len(cells) == 1:
        pytest.skip("it has no cells now")
    plain = plaincells.run(cells, 4, 2, long_s=600)
    pids = list(ranks.record.pids)
    for number, cell in enumerate(cells):
        there = [process[number] for process in plain]
        failed = any(went.error for went in there)
        try:
            record = ranks.run(cell, show=False, timeout_s=300)
        except CellFailed as error:
            named = error.ranks and {there[rank].error for rank in error.ranks}
            assert failed, f"{error} only on ranks, in:\n{cell}"
            assert error.ename in named, cell
            continue
        if any(part in cell for part in OF_OURS):
            continue
        assert not failed, f"not on ranks: {there}, in:\n{cell}"
        printed = [plaincells.Went(record.stdout(rank)) for rank in range(4)]
        if "0x" not in "".join(went.stdout for went in there):  # an object's address
            assert printed == there, cell
    assert ranks.record.pids == pids
