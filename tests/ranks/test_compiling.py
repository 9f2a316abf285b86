"""Programs are agreed on before they are compiled, where the compiler waits for other processes.

So it is on GPU: there XLA times a part of a program's kernels on each process, and each waits up to
a day for the other parts.

The ranks' CPU devices are made to do the same. tests/gpu has it on a card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from helpers import Home, until

import jaxcluster
from jaxcluster.errors import CellInterrupted, Divergence

# Each process compiles nothing of several processes before all of them have come to the same.
TOGETHER = """
import hashlib, jax, numpy as np, time
import jax.numpy as jnp
from jax._src import compiler, distributed
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxcluster.rank.private import programs

def together(backend, devices):
    return len({d.process_index for d in devices}) > 1

def tuned(backend, module, executable_devices, *args, **kwargs):
    if together(backend, executable_devices):
        client, r = distributed.global_state.client, jax.process_index()
        text = module.operation.get_asm(enable_debug_info=False)
        key = hashlib.blake2b(text.encode(), digest_size=9).hexdigest()
        client.key_value_set(f"tuned/{key}/{r}", "", allow_overwrite=True)
        for other in {d.process_index for d in executable_devices}:
            client.blocking_key_value_get(f"tuned/{key}/{other}", 86_400_000)
    return compiled(backend, module, executable_devices, *args, **kwargs)

compiled, compiler.backend_compile_and_load = compiler.backend_compile_and_load, tuned
programs.is_made_together = together
r = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split = NamedSharding(mesh, P("i"))
g = jax.make_array_from_callback((16,), split, lambda at: np.arange(16.0)[at])
total = jax.jit(lambda v: v.sum())
history = [1.0]
print(float(total(g)))
"""


@pytest.fixture(scope="module")
def ranks(home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(2, name="compiling") as cluster:
        cluster.run(TOGETHER, show=False)
        yield cluster


def check(cluster: jaxcluster.Cluster) -> None:
    said = cluster.run("print(float(total(g)), history)", show=False)
    assert [said.stdout(rank) for rank in range(2)] == ["120.0 [1.0]\n"] * 2


@pytest.mark.promise("What is agreed on")
def test_a_program_that_one_rank_alone_compiles_is_refused(ranks: jaxcluster.Cluster) -> None:
    with pytest.raises(Divergence) as caught:
        ranks.run("history[0] = 2.0\nif r == 0:\n    s = total(g * 2)", show=False)
    assert caught.value.ranks == (1,)
    told = str(caught.value)
    assert "jit(multiply), to compile it" in told and "is `if r == 0:`" in told
    ranks.run("history[0] = 1.0", show=False)
    check(ranks)


def test_a_circle_in_which_a_rank_compiles_is_refused(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    """Rank 0 has announced what all have compiled, and rank 1 is about to compile."""
    ranks = start(3)
    ranks.run(
        f"{TOGETHER.replace('16', '24')}\n"
        "pair = jax.make_mesh((2,), ('i',), devices=jax.devices()[:2])\n"
        "if r < 2:\n"
        "    h = jax.make_array_from_callback((4,), NamedSharding(pair, P('i')),"
        " lambda at: np.arange(4.0)[at])",
        show=False,
    )
    with pytest.raises(Divergence, match="wait for each other"):
        ranks.run("if r == 1: h.max()\ntotal(g)\nif r == 0: h.max()", show=False)
    assert ranks.run("print(float(total(g)))", show=False).stdout(2) == "276.0\n"


def test_the_stop_button_ends_it(ranks: jaxcluster.Cluster) -> None:
    cell = ranks.submit("if r == 1: time.sleep(600)\nprint(float(total(g * 4)))")
    until(lambda: ranks.look() and ranks.look().waits, "rank 0 is about to compile")
    cell.stop()
    with pytest.raises(CellInterrupted):
        cell.wait()
    check(ranks)
