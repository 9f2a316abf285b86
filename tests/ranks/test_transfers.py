"""``device_put`` from one process's devices to another's: it works on CPU, in lockstep, locally."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

import pytest
from helpers import Home

import jaxcluster
from jaxcluster.errors import CellFailed, Divergence

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.one_machine("JAX sends between hosts on GPU and TPU alone"),
]

SETUP = """
import glob, os, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
r = jax.process_index()
devices = jax.devices()
def on(*places):
    return NamedSharding(Mesh(np.array([devices[i] for i in places]), ("i",)), P("i"))
stages, whole = [on(0, 1), on(2, 3), on(4, 5)], on(*range(6))
total = jax.jit(jnp.sum)
x = jax.make_array_from_callback((6,), whole, lambda index: np.arange(6.0)[index])
def held(array):
    return [np.asarray(shard.data).tolist() for shard in array.addressable_shards]
@jax.jit
def stage(values):
    return 2 * values + 1
"""
# Microbatches pass through three processes, each of which has a stage.
PIPELINE = """
batches = [jnp.arange(4.0) + start for start in (0, 10)]
for number, place in enumerate(stages):
    batches = jax.device_put(batches, [place] * 2)
    batches = [stage(batch) for batch in batches]
print([held(batch) for batch in batches])
"""
RIGHT = "[[[7.0, 15.0], [23.0, 31.0]], [[87.0, 95.0], [103.0, 111.0]]]\n"


@pytest.fixture(scope="module")
def ranks(home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(3, devices_per_process=2, name="transfers") as running:
        running.run(SETUP, show=False)
        yield running


def check(ranks: jaxcluster.Cluster) -> None:
    """The pipeline computes what it must, and so do programs of all ranks."""
    record = ranks.run(PIPELINE, show=False)
    assert [record.stdout(rank) for rank in range(3)] == ["[[], []]\n", "[[], []]\n", RIGHT]
    assert ranks.run("print(float(total(x)))", show=False).stdout(1) == "15.0\n"


LISTENING = """
own = {os.readlink(link) for link in glob.glob("/proc/self/fd/*") if os.path.exists(link)}
rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/self/net/{name}")]
print(*(row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own))
"""


def address_of(word: str) -> ipaddress.IPv4Address:
    """The IPv4 address that a word of /proc/net/tcp, or of tcp6, means."""
    groups = [bytes.fromhex(word[at : at + 8])[::-1] for at in range(0, len(word), 8)]
    found: Any = ipaddress.ip_address(b"".join(groups))
    return found if len(groups) == 1 else found.ipv4_mapped


def test_a_pipeline_over_processes_computes_what_it_must(ranks: jaxcluster.Cluster) -> None:
    """A stage that comes late is waited for; and nobody outside of this machine can reach it."""
    record = ranks.run(f"if r == 0: time.sleep(3)\n{PIPELINE}", show=False)
    assert record.stdout(2) == RIGHT
    check(ranks)
    large = (
        "one = jax.device_put(np.arange(1 << 20), stages[0])\n"
        "one = jax.device_put(one, stages[1])\nprint([part[-1] for part in held(one)])"
    )
    assert ranks.run(large, show=False).stdout(1) == f"[{(1 << 19) - 1}, {(1 << 20) - 1}]\n"
    record = ranks.run(LISTENING, show=False)
    for rank in range(3):
        found = [address_of(word) for word in record.stdout(rank).split()]
        assert all(address.is_loopback for address in found)
        assert any(str(address) != "127.0.0.1" for address in found)  # JAX's, of its own


SKIPPED = """
one = jax.device_put(np.ones(4, "float32"), stages[0])
if r != {rank}:
    two = jax.device_put(one, stages[1])
    held(two)
"""
# By devices in place of shardings, with what is sent right after it.
BY_DEVICE = """
one = jax.device_put(np.ones(4, "float32"), devices[0])
if r != {rank}:
    two = jax.device_put(one, devices[2])
three = jax.device_put(jax.device_put(np.arange(4, dtype="float32"), on(0)), on(2))
print(held(three))
"""
# XLA numbers these in eight groups, in another order on each process.
MANY = """
places = [(start, end) for end in (2, 3, 4, 5) for start in (0, 1)]
sent = [jax.device_put(np.full(2, i, "float32"), on(start)) for i, (start, _) in enumerate(places)]
came = jax.device_put(sent, [on(end) for _, end in places])
print(*(held(array)[0][1] for array in came if held(array)))
values = [np.full(2, i, "float32") for i in range(len(places))]
sent = [jax.device_put(values[i], devices[start]) for i, (start, _) in enumerate(places)]
as_devices = jax.device_put(sent, [devices[end] for _, end in places])
print(*(held(array)[0][1] for array in as_devices if held(array)))
"""
# By one rank alone, which has no part of it.
OTHERWISE = """
one = jax.device_put(np.ones(4, "float32"), devices[0])
if r == 1:
    jax.make_array_from_callback(
        (4,), jax.sharding.SingleDeviceSharding(devices[2]), lambda index: one)
"""
# Of one shape and of another device order, so that all of it would come to an end.
OTHER = """
one = jax.device_put(np.arange(4, dtype="float32"), stages[0] if r else on(1, 0))
two = jax.device_put(one, stages[1])
print(held(two))
"""
# A part that stays in its process: JAX moves none of such an array, or all parts.
REFUSED = """
one = jax.device_put(np.arange(4, dtype="float32"), on(0, 2))
jax.device_put(one, on(1, 4))
"""


def test_transfers_that_ranks_skip_or_that_differ_are_told_and_mix_up_nothing(
    ranks: jaxcluster.Cluster,
) -> None:
    """JAX numbers transfers on each process: one less, and another array's values would come.

    So too on a process that takes no part in it.
    """
    for rank in range(3):
        with pytest.raises(Divergence) as caught:
            ranks.run(SKIPPED.format(rank=rank), show=False)
        told = f": rank {rank} ended the cell without the launch that"
        assert told in str(caught.value)
        assert f"is `if r != {rank}:`" in str(caught.value)
        check(ranks)
    for rank in (1, 2):
        with pytest.raises(Divergence):
            ranks.run(BY_DEVICE.format(rank=rank), show=False)
        check(ranks)
    with pytest.raises((CellFailed, Divergence), match="the other processes would not know of it"):
        ranks.run(OTHERWISE, show=False)
    check(ranks)
    with pytest.raises(Divergence, match="different programs"):
        ranks.run(OTHER, show=False)
    check(ranks)
    # jax 0.10 refuses it on one rank alone.
    with pytest.raises((CellFailed, Divergence), match=r"if every shard|refused it on others"):
        ranks.run(REFUSED, show=False)
    check(ranks)


def test_what_goes_to_several_places_at_once_arrives_where_it_must(
    ranks: jaxcluster.Cluster,
) -> None:
    record = ranks.run(MANY, show=False)
    assert [record.stdout(rank) for rank in range(3)] == [
        "\n\n",
        "0.0 1.0 2.0 3.0\n" * 2,
        "4.0 5.0 6.0 7.0\n" * 2,
    ]
    right = ranks.run(BY_DEVICE.format(rank=-1), show=False)
    assert right.stdout(1) == "[[0.0, 1.0, 2.0, 3.0]]\n"
    check(ranks)
