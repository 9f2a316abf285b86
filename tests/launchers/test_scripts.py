"""``jaxcluster run`` on other hosts, and an exported notebook there, under srun and mpiexec too.

All ways must print the numbers that the notebook shows; numpy computes them here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rig import Rig, find_mpi, provided

from jaxcluster.notebook import export

pytestmark = [pytest.mark.any_jax, pytest.mark.timeout(300)]
DEADLINE_S = 130.0
QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
TRAINING = """
from helper import RATE
w = jax.device_put(np.zeros(8, 'float32'), NamedSharding(mesh, P()))
a = np.random.default_rng(0).normal(size=(32, 8)).astype('float32')
rows = NamedSharding(mesh, P(('i', 'j')))
features = jax.make_array_from_callback(a.shape, rows, lambda at: a[at])
step = jax.jit(lambda w, a: w - RATE * jax.grad(lambda w: jnp.mean((a @ w - 1) ** 2))(w))
for _ in range(20):
    w = step(w, features)
print('trained', float(jnp.sum(w)))
"""


def reference() -> tuple[float, float]:
    """The quickstart's sum, and the training's, by numpy."""
    a = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
    w = np.zeros(8, "float32")
    for _ in range(20):
        w = w - 0.1 * 2 * a.T @ (a @ w - 1) / 32
    return float(np.sin(np.arange(32)).sum()), float(w.sum())


@pytest.fixture
def script(hosts: Rig) -> Iterator[Path]:
    """The quickstart and a training, exported, in a folder that all hosts see."""
    cells = json.loads(QUICKSTART.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    bodies = [s.partition("\n")[2] for s in sources if s.startswith("%%spmd\n")]
    steps = [export.Cell(number, "", body) for number, body in enumerate([*bodies, TRAINING], 1)]
    text, _ = export.script(export.Log([*steps], 4, 2), QUICKSTART.name, "train.py")
    folder = hosts.shared / "script"
    folder.mkdir()
    (folder / "train.py").write_text(text)
    (folder / "helper.py").write_text("RATE = 0.1\n")
    yield folder / "train.py"
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def check(output: str) -> None:
    """These are the notebook's numbers."""
    total, trained = reference()
    found = re.search(r"^0 (\S+)$", output, re.M)
    assert found is not None and float(found[1]) == pytest.approx(total, abs=1e-4), output
    found = re.search(r"^trained (\S+)$", output, re.M)
    assert found is not None and float(found[1]) == pytest.approx(trained, rel=1e-4), output
    assert re.search(r"\[ *24, +25,", output)  # x, as the notebook shows it whole


def run(rig: Rig, script: Path, *options: str) -> str:
    words = ("run", *options, "--devices-per-process", "2", "--timeout", "100")
    command = (rig.python, "-m", "jaxcluster", *words, "train.py")
    env = {"JAXCLUSTER_SHARED_DIR": str(rig.shared / "script" / "launch")}
    done = rig["h0"].run(*command, cwd=script.parent, env=env, timeout_s=DEADLINE_S)
    logs = Path(re.search(r"All outputs: (\S+)", done.stderr)[1])  # type: ignore[index]
    rig["h0"].run("rm", "-r", logs)
    return done.stdout


def test_on_hosts_by_ssh(ssh: Rig, script: Path) -> None:
    check(run(ssh, script, "--launcher", "ssh", "--hosts", "h1:2,h2:2"))


def test_by_srun_alone_and_as_a_job(slurm: Rig, script: Path) -> None:
    job = ("--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1")
    done = slurm["h0"].run(
        "srun", *job, slurm.python, "train.py", cwd=script.parent, timeout_s=DEADLINE_S
    )
    check(done.stdout)
    options = ("--nodes", "2", "--ntasks-per-node", "2")
    check(run(slurm, script, "--launcher", "slurm", *options))


def test_by_mpiexec_alone_and_by_the_launcher(ssh: Rig, script: Path) -> None:
    """Open MPI 4 is what JAX knows by itself, where mpiexec runs on rank 0's host."""
    mpi = provided(lambda: find_mpi("openmpi4"))
    argv = mpi.argv({"h0": 2, "h1": 2}, ssh.python, script)
    check(ssh["h0"].run(*argv, cwd=script.parent, timeout_s=DEADLINE_S).stdout)
    options = ("--launcher", "mpi", "--hosts", "h1:2,h2:2", "--mpiexec", str(mpi.mpiexec))
    check(run(ssh, script, *options))
