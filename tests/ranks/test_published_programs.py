"""Programs as they are published run in cells, and the errors that they meet are explained."""

from __future__ import annotations

from pathlib import Path

import pytest

import jaxcluster
from jaxcluster.errors import CellFailed, Divergence

pytestmark = pytest.mark.any_jax

PUT = "jax.device_put({}, NamedSharding(mesh, P('i')))"
EXPLICIT = (
    "explicit = jax.make_mesh((jax.device_count(),), ('i',))\n"
    "e = jax.device_put(np.arange(8.0), NamedSharding(explicit, P('i')))\n"
)
HINTS = {
    "float64": (PUT.format("np.full(8, 0.1)"), "give float32 for float64"),
    "int64": (PUT.format("np.full(8, 2**40)"), "int32 for int64"),
    "nan": (PUT.format("np.full(8, np.nan, 'float32')"), "and no NaN"),
    "own values": (PUT.format("np.full(8, rank, 'float32')"), "The ranks' values differ"),
    "matmul": (
        "m = jax.device_put(np.ones((8, 8), 'float32'), NamedSharding(mesh, P(None, 'i')))\n"
        "m @ m.T",
        "jnp.matmul(x, y, out_sharding=P())",
    ),
    "a part": (EXPLICIT + "e[0]", ".get(out_sharding="),
    "a changed part": (EXPLICIT + "e.at[0].set(1.0)", "make_mesh gives Explicit axes"),
    "allgather": (
        "from jax.experimental import multihost_utils\nmultihost_utils.process_allgather(x)",
        "process_allgather(x, tiled=True)",
    ),
}


@pytest.mark.parametrize(("source", "hint"), HINTS.values(), ids=HINTS)
def test_an_error_that_single_process_jax_does_not_know_is_explained(
    cluster: jaxcluster.Cluster, source: str, hint: str
) -> None:
    with pytest.raises(CellFailed) as failed:
        cluster.run(source, show=False)
    assert hint in failed.value.hint
    assert failed.value.hint.count("\n") == 0


ARGPARSE = """
import argparse, sys
import jax
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("name")
    args = parser.parse_args()
    print(args.steps, args.name, sys.argv[1:], jax.process_index(), __name__)
    return args.steps
if __name__ == "__main__":
    steps = main()
"""


def test_an_argparse_program_runs_as_it_is(cluster: jaxcluster.Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ARGPARSE)
    record = cluster.run(f"%run {script} --steps 3 gemma", show=False)
    for rank in range(4):
        assert record.stdout(rank) == f"3 gemma ['--steps', '3', 'gemma'] {rank} __main__\n"
    assert cluster.run("print(steps)", show=False).stdout() == "3\n"
    with pytest.raises(CellFailed, match="SystemExit on ranks 0-3: 2"):
        cluster.run(f"%run {script} --stepz 3 gemma", show=False)
    assert "unrecognized arguments: --stepz" in cluster.last.records[3].text("stderr")
    assert cluster.run("import sys; print(sys.argv)", show=False).stdout() == "['']\n"


LOGGING = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
grid = jax.make_mesh((jax.device_count(),), ("i",))
step = jax.jit(lambda a: (a + 1, jnp.sum(a)))
numbers = np.arange(8.0)
a = jax.make_array_from_callback((8,), NamedSharding(grid, P("i")), lambda at: numbers[at])
log = []
for _ in range(3):
    a, loss = step(a)
if jax.process_index() == 0:
    log.append(LOGGED)
"""


@pytest.mark.parametrize(
    ("logged", "said"),
    [
        ("(float(loss), np.asarray(loss).mean(), str(loss.sharding), repr(a))", ""),
        ("a.sum()", "logging_on_0.py line 12: log.append(a.sum())"),
        ("jnp.sqrt(loss)", "rank 0 launched other programs without collectives"),
    ],
)
def test_what_process_0_alone_logs_is_told_where_it_launches_something(
    cluster: jaxcluster.Cluster, tmp_path: Path, logged: str, said: str
) -> None:
    """As NetKet's example ends, which deadlocks in plain JAX."""
    script = tmp_path / "logging_on_0.py"
    script.write_text(LOGGING.replace("LOGGED", logged))
    run = f"%run {script}"
    if not said:
        assert cluster.run(run, show=False).ok
        return
    with pytest.raises(Divergence) as caught:
        cluster.run(run, show=False)
    assert said in str(caught.value)
    assert cluster.run("print(float(jnp.sum(x)))", show=False).stdout() == "496.0\n"
