"""One process of a job, which does something else than the others at turn 20."""

import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

rank, size, case = int(os.environ["RANK"]), int(os.environ["SIZE"]), sys.argv[1]
jax.distributed.initialize(os.environ["ADDRESS"], size, rank)
if case != "auto":
    import jaxcluster

    assert jaxcluster.agree(stall_s=2)
sharding = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
x = jax.make_array_from_callback((12,), sharding, lambda at: np.arange(12.0)[at])
step = jax.jit(lambda x: x.sum())
if case == "thread":  # it is no daemon, and waits for longer than anybody would
    threading.Thread(target=time.sleep, args=(100,)).start()
for turn in range(40):
    if rank == 1 and turn == 20:
        match case:
            case "skip":
                continue
            case "mix" | "auto":
                jnp.max(x)
            case "fail":
                raise ValueError("a bad batch")
            case "die" | "thread":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(5)
    total = float(step(x))
print("total", total)
