"""Published programs of the ecosystem in cells: a suite of its own, which installs what it needs.

``bash tests/run.sh tests/published``. It is not among the checks: it takes minutes, and depends on
what others publish. Where packages or sources can't be had, it skips and says so.
JAXCLUSTER_PUBLISHED names a folder with sources (``OWNER+REPOSITORY/PATH``), and
JAXCLUSTER_PUBLISHED_PACKAGES a folder of packages, for machines without a network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import plaincells
import pytest
from helpers import Home

import jaxcluster
from jaxcluster.errors import Divergence

pytestmark = pytest.mark.timeout(900)

PACKAGES = ("equinox", "flax", "netket", "optax", "orbax-checkpoint")
Source = Callable[[str, str], str]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the packages, beside those of this environment."""
    if given := os.environ.get("JAXCLUSTER_PUBLISHED_PACKAGES"):
        return given
    folder = tmp_path_factory.mktemp("packages")
    venv.create(folder, with_pip=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [str(folder / "bin" / "pip"), "install", "-q", *PACKAGES]
    made = subprocess.run(install, check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"they can't be installed here: {made.stderr.strip().splitlines()[-1:]}")
    return str(site)


@pytest.fixture(scope="session")
def ranks(packages: str) -> Iterator[jaxcluster.Cluster]:
    home = Home.make()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.variables.items():
            patch.setenv(name, value)
        paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), packages]))
        env = {"PYTHONPATH": paths, "NETKET_EXPERIMENTAL_SHARDING": "1"}
        with jaxcluster.start(2, devices_per_process=2, env=env, timeout_s=180) as running:
            yield running
    home.remove()


def same_on_all(ranks: jaxcluster.Cluster, code: str) -> str:
    """What all ranks have printed, which must be the same."""
    record = ranks.run(code, show=False)
    texts = {record.stdout(rank) for rank in record.ranks}
    assert len(texts) == 1
    return texts.pop()


NNX = """
import jax, jax.numpy as jnp, optax
from flax import nnx
total = jax.jit(jnp.sum)
whole = jax.make_array_from_callback(
    (4,), jax.NamedSharding(jax.make_mesh((jax.device_count(),), ("i",)), jax.P("i")),
    lambda index: jnp.ones(4)[index])
model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
@nnx.jit
def train(model, optimizer):
    optimizer.update(model, nnx.grad(lambda m: jnp.sum(m(jnp.ones((1, 4))) ** 2))(model))
before = model.kernel.value
float(total(whole))
"""
TRAINED = """
train(model, optimizer); model.extra = 3
if jax.process_index() == 0: total(whole).block_until_ready()
"""


def test_a_refused_cell_keeps_what_it_has_made_of_an_nnx_model(ranks: jaxcluster.Cluster) -> None:
    ranks.run(NNX, show=False)
    with pytest.raises(Divergence, match="rank 1 ended the cell without the launch"):
        ranks.run(TRAINED, show=False)
    told = "print((model.kernel.value == before).all(), hasattr(model, 'extra'))"
    assert same_on_all(ranks, told) == "False True\n"
    ranks.run("train(model, optimizer); float(total(whole))", show=False)


# What NetKet's example ends with, in the versions that show what one shall not do.
DEADLOCK = "# The following code will cause a deadlock"


def test_netkets_own_example_runs_and_what_deadlocks_in_it_is_told(
    ranks: jaxcluster.Cluster, source: Source, tmp_path: Path
) -> None:
    """``Examples/Sharding/multi_process.py`` shows a deadlock on purpose at its end.

    Started by hand or by mpiexec it hangs there for ever: process 0 alone sums an array that spans
    both. All before that runs; then the line is named.
    """
    script = source("netket/netket", "Examples/Sharding/multi_process.py")
    lines = [line for line in script.splitlines() if "jax.distributed.initialize(" not in line]
    fewer = "\n".join(lines).replace("n_iter=50", "n_iter=5")
    (tmp_path / "runs.py").write_text(fewer.partition(DEADLOCK)[0])
    record = ranks.run(f"%cd -q {tmp_path}\n%run runs.py", show=False)
    for rank in record.ranks:
        assert "depending on all data:" in record.stdout(rank)
    if DEADLOCK in fewer:
        (tmp_path / "multi_process.py").write_text(fewer)
        with pytest.raises(Divergence) as told:
            ranks.run("%run multi_process.py", show=False)
        (number,) = (
            at for at, line in enumerate(fewer.splitlines(), 1) if "counter_total = counter" in line
            and "print" not in line
        )  # fmt: skip
        where = f"multi_process.py line {number}: counter_total = counter.sum()"
        assert f"line 1   %run multi_process.py   ({where})" in str(told.value)


ORBAX = """
import jax, numpy as np, orbax.checkpoint as ocp, pathlib
sharding = jax.NamedSharding(jax.make_mesh((jax.device_count(),), ("x",)), jax.P("x"))
values = np.arange(64, dtype="float32").reshape(16, 4)
state = {"w": jax.make_array_from_callback((16, 4), sharding, lambda ix: values[ix]), "step": 3}
folder = pathlib.Path(FOLDER)
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder / "one", state)
    checkpointer.wait_until_finished()
    back = checkpointer.restore(folder / "one", state)
for one, other in zip(back["w"].addressable_shards, state["w"].addressable_shards):
    assert np.array_equal(one.data, other.data)
with ocp.CheckpointManager(
    folder / "many", options=ocp.CheckpointManagerOptions(max_to_keep=2)
) as manager:
    for step in range(3):
        manager.save(step, args=ocp.args.StandardSave(state))
    manager.wait_until_finished()
    print(back["step"], manager.all_steps())
"""


def test_orbax_saves_and_restores_as_its_guide_does(
    ranks: jaxcluster.Cluster, tmp_path: Path
) -> None:
    ranks.run(f"FOLDER = {str(tmp_path)!r}", show=False)
    assert same_on_all(ranks, ORBAX) == "3 [1, 2]\n"


EQUINOX = """
import equinox as eqx, jax, jax.numpy as jnp, numpy as np, optax
auto = jax.sharding.AxisType.Auto
mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(auto,))
data, replicated = jax.NamedSharding(mesh, jax.P("batch")), jax.NamedSharding(mesh, jax.P())
model = eqx.nn.MLP(2, 1, 16, 2, key=jax.random.key(0))
optim = optax.adam(3e-3)
opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))

@eqx.filter_jit(donate="all")
def train_step(model, opt_state, x, y):
    model, opt_state = eqx.filter_shard((model, opt_state), replicated)
    x, y = eqx.filter_shard((x, y), data)
    loss_of = lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2)
    loss, grads = eqx.filter_value_and_grad(loss_of)(model)
    updates, opt_state = optim.update(grads, opt_state)
    return *eqx.filter_shard((eqx.apply_updates(model, updates), opt_state), replicated), loss

model = eqx.filter_shard(model, replicated)
draw = np.random.default_rng(0)
for _ in range(3):
    rows = draw.normal(size=(32, 2)).astype("float32")
    x = jax.make_array_from_callback(rows.shape, data, lambda index: rows[index])
    model, opt_state, loss = train_step(model, opt_state, x, x[:, :1] * 2)
print(float(loss))
"""


FLAX = """
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
rows, whole = jax.NamedSharding(mesh, jax.P("data")), jax.NamedSharding(mesh, jax.P())

class Model(nnx.Module):
    def __init__(self, rngs):
        self.one, self.two = nnx.Linear(4, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)
    def __call__(self, x):
        return self.two(nnx.relu(self.one(x)))

model = Model(nnx.Rngs(0))
nnx.update(model, jax.device_put(nnx.state(model), whole))
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

@nnx.jit
def step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - x[:, :1]) ** 2))(model)
    optimizer.update(model, grads)
    return loss

draw = np.random.default_rng(0)
for _ in range(4):
    values = draw.normal(size=(32, 4)).astype("float32")
    x = jax.make_array_from_callback(values.shape, rows, lambda index: values[index])
    loss = step(model, optimizer, x)
print(float(loss))
"""


@pytest.mark.parametrize("program", [EQUINOX, FLAX], ids=["equinox", "flax"])
def test_parallel_training_goes_as_in_plain_processes_and_as_in_one(
    ranks: jaxcluster.Cluster, packages: str, program: str
) -> None:
    found = [float(same_on_all(ranks, program))]
    more = {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), packages]))}
    for num_processes in (2, 1):
        for (went,) in plaincells.run(
            [program], num_processes, 4 // num_processes, more, long_s=600
        ):
            assert not went.error
            found.append(float(went.stdout))
    assert found == pytest.approx([found[0]] * 4, rel=1e-4)
