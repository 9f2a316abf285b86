"""What a cell costs more because it can be undone.

First what a rank does before and after each cell, by what the cell can reach, in CPU time of the
main thread; then ``Cluster.run("pass")`` with undo and without, in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from harness import median, ratio, sandbox, table

import jaxcluster
from jaxcluster.engine.undo import Undo

MOST_MS = 0.2

SETUP = """
import jax, jax.numpy as jnp, numpy as np
x = jnp.ones(8)
for number in range(1000): globals()[f'name{number}'] = x
params = {f'layer{n}': {'w': x, 'b': x} for n in range(12)}
deep = {f'layer{n}': {'w': x, 'b': x} for n in range(100)}
wide = [x] * 4000
state = {'step': 0, 'losses': [0.5] * 100}
rng = np.random.default_rng(0); batch = np.zeros((64, 32))
@jax.jit
def step(params, batch): return params
class Trainer:
    def __init__(self): self.params, self.history = params, []
    def fit(self): self.history.append(state['step'])
trainer = Trainer()
"""

CELLS = {
    "1,000 names, `pass`": "pass",
    "a training loop, 12 layers": (
        "for i in range(10):\n"
        "    batch = rng.normal(size=(64, 32))\n"
        "    params = step(params, batch)\n"
        "    state['step'] += 1; state['losses'].append(0.1)\n"
        "print(state['losses'][-1])\n"
    ),
    "a trainer of the user's": "trainer.fit(); print(trainer.history)",
    "100 layers (the most that is looked at)": "deep = step(deep, batch)",
    "a list of 4,000 arrays (the same)": "wide = wide[1:]",
    "a cell of 1,000 lines": "y = step(params, batch)\n" * 1000,
}


def cost_ms(work: Callable[[], Any], rounds: int) -> float:
    """CPU time of this thread: other work on the machine counts less."""
    took = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        took.append((time.thread_time() - began) * 1e3)
    return median(took)


def on_a_rank(rounds: int) -> dict[str, float]:
    namespace: dict[str, Any] = {"__name__": "__main__", "_oh": {}}
    exec(SETUP, namespace)
    undo = Undo()
    undo.namespace, undo.display_hook = namespace, object()
    found = {}
    for name, source in CELLS.items():

        def cell(source: str = source) -> None:
            undo.begin(1, source)
            undo.end()

        cell()
        found[name] = cost_ms(cell, rounds)
    return found


def end_to_end(rounds: int) -> tuple[list[float], list[float]]:
    took: dict[int | None, list[float]] = {None: [], 0: []}
    with jaxcluster.start(4, devices_per_process=1, name="bench-undo") as cluster:
        cluster.run(SETUP)
        for number in range(-5, rounds):
            for limit, times in took.items():
                cluster.limit_undo(limit)
                cluster.run("pass", show=False)
                began = time.perf_counter()
                cluster.run("pass", show=False)
                if number >= 0:
                    times.append((time.perf_counter() - began) * 1e3)
    return took[None], took[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="cells of a kind (%(default)s)")
    args = parser.parse_args()
    with sandbox():
        costs = on_a_rank(args.rounds)
        table(
            ["before and after a cell, on a rank", "ms"],
            [[n, f"{v:.3f}"] for n, v in costs.items()],
        )
        for name, cost in costs.items():
            ratio(f"{name}, of {MOST_MS} ms", cost / MOST_MS, 1.0)
        with_undo, without = end_to_end(args.rounds)
        rows = [["with undo", f"{median(with_undo):.2f}"], ["without", f"{median(without):.2f}"]]
        table(["Cluster.run('pass') on 4 ranks, 1,000 names", "ms"], rows)
        print(f"{median(with_undo) - median(without):+.2f} ms with undo")


if __name__ == "__main__":
    main()
