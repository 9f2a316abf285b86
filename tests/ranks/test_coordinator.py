"""Any rank may die, rank 0 too, and the others live on."""

from __future__ import annotations

import time

from helpers import until
from overhosts import coordinator_of, processes_of, send_signal

import jaxcluster
from jaxcluster.wire.ops.status import State

DEADLINE_S = 40.0
SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("x",))
g = jax.make_array_from_callback((16,), NamedSharding(mesh, P("x")), lambda i: np.arange(16.0)[i])
keep = "my variable"
print(float(jnp.sum(g)))
"""


def held(cluster: jaxcluster.Cluster, rank: int) -> bool:
    """Whether a rank answers."""
    event = cluster.world.link.gather([rank], State(), timeout_s=DEADLINE_S)[rank]
    return event.op == "reply"


def test_survivors_outlive_the_heartbeats_of_dead_ranks() -> None:
    with jaxcluster.start(4, devices_per_process=2, heartbeat_timeout_seconds=2) as cluster:
        assert cluster.run(SETUP, show=False).stdout() == "120.0\n"
        assert coordinator_of(cluster).lives
        ended: list[int] = []
        cluster.world.fleet.on_event = lambda event: ended.append(getattr(event, "rank", None))
        send_signal(cluster, 0)
        until(lambda: 0 in ended, "the fork server tells of rank 0's death")
        send_signal(cluster, 2)
        until(lambda: 2 in ended, "the fork server tells of rank 2's death")
        # Heartbeats are due every second, and a rank that gives one up is aborted within two:
        # nothing happens in twice that time.
        waited_since = time.monotonic()
        until(lambda: time.monotonic() - waited_since > 5 or len(ended) > 2, "heartbeats")
        assert ended == [0, 2]
        assert held(cluster, 1) and held(cluster, 3)
        processes = [coordinator_of(cluster), *processes_of(cluster)]
    assert not any(process.lives for process in processes)


BARRIERS = """
import jax
import numpy as np
from jax._src import distributed
client = distributed.global_state.client
rank = jax.process_index()

def meet(name, who=None):
    try:
        client.wait_at_barrier(name, 2000, process_ids=who)
        return "met"
    except jax.errors.JaxRuntimeError as error:
        return str(error).partition(":")[0]

def after(name):
    return client.blocking_key_value_get(name, 20000)
"""


def test_barriers_are_jaxs_own_but_for_those_who_come_after_one_that_does_not_belong() -> None:
    """By JAX's own tests/multiprocess/wait_barrier_test.py; docs/guarantees.md tells of it."""
    with jaxcluster.start(4) as cluster:
        cluster.run(BARRIERS)

        def said(source: str) -> list[str]:
            record = cluster.run(source, show=False)
            return [record.stdout(rank).strip() for rank in range(4)]

        assert said("print(meet('all'))") == ["met"] * 4
        assert said("print(rank % 2 or meet('even', [*np.r_[0, 2]]))") == ["met", "1", "met", "1"]
        assert said("print(rank and meet('no rank 0'))") == ["0", *["DEADLINE_EXCEEDED"] * 3]
        # One that does not belong is told so, and the others meet as if it had not come. In plain
        # JAX, where tasks are not recoverable, they get its INVALID_ARGUMENT too.
        outsider = "if rank == 1:\n    print(meet('odd', [0, 2])); client.key_value_set('1', '')\n"
        insiders = "elif rank != 3:\n    after('1'); print(meet('odd', [0, 2]))"
        assert said(outsider + insiders) == ["met", "INVALID_ARGUMENT", "met", ""]
        assert said("print(meet('all again'))") == ["met"] * 4
