"""What ``jaxcluster.steps`` costs, and whether a loop that is killed comes to the same numbers.

A step of 10 ms does nothing but pass: what the process computes meanwhile, beside a plain loop in
turn, is the cost. Then how long a loop stands still for one step that is kept. Then a training loop
whose ranks are killed at random, against one that nobody disturbs.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import time

import psutil
from harness import median, ratio, sandbox, table

import jaxcluster
from jaxcluster.errors import RankDied
from jaxcluster.model.outputs import CellRecord

STEP_S = 0.01
SETUP = """
import time, jax, jax.numpy as jnp, numpy as np, jaxcluster
from jax.sharding import NamedSharding, PartitionSpec as P
auto = jax.sharding.AxisType.Auto
mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(auto,))
rows, r = NamedSharding(mesh, P("i")), jax.process_index()
def batch(i):
    own = np.random.default_rng([i, r]).normal(size=(8, 32)).astype("float32")
    return jax.make_array_from_process_local_data(rows, own)
@jax.jit
def train(w, m, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - x) ** 2))(w)
    return w - 0.1 * m, 0.9 * m + grad, loss
def passed(loop):
    began = time.process_time()
    for i in loop:
        time.sleep(STEP_S)
    return time.process_time() - began
"""
PASS = """
for round in range(ROUNDS):
    plain = passed(range(STEPS))
    state = {"w": 1}
    ours = passed(jaxcluster.steps(range(STEPS), keep="60s", state=state))
    print("COST", plain, ours)
"""
STAND = """
big = [jax.make_array_from_callback((jax.device_count(), MIB << 14), rows,
       lambda index: np.zeros((1, MIB << 14), np.float32)) for _ in range(16)]
double = jax.jit(lambda tree: jax.tree.map(lambda v: v + 1, tree))
stood, last = {}, 0.0
for i in jaxcluster.steps(range(60), keep=10):
    stood[i] = time.perf_counter() - last
    big = jax.block_until_ready(double(big))
    time.sleep(0.2)
    last = time.perf_counter()
print("STOOD", *(stood[i] for i in (20, 30, 40, 50)))
"""
TRAIN = """
w, m, losses = jnp.eye(32), jnp.zeros((32, 32)), []
for i in jaxcluster.steps(range(2000), keep=KEEP):
    w, m, loss = train(w, m, batch(i))
    losses.append(float(loss))
    time.sleep(0.004)
print("ENDED", len(losses), np.asarray(w.addressable_data(0)).tobytes().hex(), losses[-1].hex())
"""


def numbers(record: CellRecord, word: str) -> list[str]:
    return re.findall(rf"(?m)^{word} (.*)$", record.stdout(0))


def cost(cluster: jaxcluster.Cluster, rounds: int, steps: int) -> float:
    """What a process computes more for a step, of the step's time."""
    cluster.run(f"ROUNDS, STEPS, STEP_S = {rounds}, {steps}, {STEP_S}", show=False)
    found = numbers(cluster.run(PASS, show=False), "COST")
    pairs = [tuple(map(float, line.split())) for line in found]
    return median([ours - plain for plain, ours in pairs]) / steps / STEP_S


def killed(cluster: jaxcluster.Cluster, times: int) -> tuple[str, int]:
    """How a loop ends that is killed so often; and how often it was, with a kept step to go on."""
    went_on = 0
    for _ in range(times):
        pid = random.choice(cluster.status()).pid
        cell = cluster.submit(TRAIN)
        cell.run_in_background(lambda record: None)
        time.sleep(random.uniform(0.5, 4.0))
        psutil.Process(pid).send_signal(signal.SIGKILL)
        try:
            cell.wait()
        except RankDied as death:
            went_on += "Kept at step" in str(death)
        else:
            raise SystemExit("It ended before it was killed: more steps, or fewer kills.")
        cluster.run(f"{SETUP}\nKEEP = '0.5s'", show=False)
    return numbers(cluster.run(TRAIN, show=False), "ENDED")[-1], went_on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--mib", type=int, default=256, help="what a step keeps, in all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=20)
    args = parser.parse_args()
    with sandbox(), jaxcluster.start(args.n, devices_per_process=1) as cluster:
        cluster.run(f"{SETUP}\nKEEP, MIB = '0.5s', {args.mib // args.n}", show=False)
        share = cost(cluster, args.rounds, 300)
        stood = numbers(cluster.run(STAND, show=False), "STOOD")[0].split()
        undisturbed = numbers(cluster.run(TRAIN, show=False), "ENDED")[-1]
        ended, went_on = killed(cluster, args.kills)
    stands = 1e3 * median([*map(float, stood)])
    rows = [
        ["a step of 10 ms costs more, %", f"{100 * share:.2f}"],
        [
            f"a loop stands still to keep {args.mib} MiB, ms",
            f"{stands:.1f}",
        ],
        ["kills after which it went on at a kept step", f"{went_on} of {args.kills}"],
        ["the parameters are bit-equal", str(ended == undisturbed)],
    ]
    table(["jaxcluster.steps", ""], rows)
    ratio("a step of 10 ms", 1 + share, 1.01)
    if ended != undisturbed:
        raise SystemExit(f"{ended} is not {undisturbed}")


if __name__ == "__main__":
    main()
