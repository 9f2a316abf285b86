"""A training job that calls ``jaxcluster.agree()``, under srun and two mpiexec: see training.py.

A few of the faults, early, are part of CI. With ``JAXCLUSTER_FAULT_STEP=1000`` each launcher has
each fault at that step, which takes half an hour.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from rig import Rig, find_mpi, provided

SCRIPT = Path(__file__).parents[1] / "jobs" / "training.py"
STEP = int(os.environ.get("JAXCLUSTER_FAULT_STEP", "6"))
IS_WHOLE = "JAXCLUSTER_FAULT_STEP" in os.environ
SOON_S = 1.0 if IS_WHOLE else 5.0  # four tests share two cores
LIMIT_S = 280.0
SIZE = 3
SAYS = {
    "skip": "were about to launch one program with different values",
    "ends": "Rank 1 ended the script without the launch that ranks",
    "raises": "ValueError: a bad batch",
    "dies": "Rank 1 died.",
    "shape": "were about to launch different programs.",
    "rate": "were about to launch one program with different values",
}
pytestmark = [
    pytest.mark.newest_jax,
    pytest.mark.timeout(LIMIT_S + 20),
    pytest.mark.skipif(not (find_spec("flax") and find_spec("grain")), reason="no flax"),
]


def faults(*in_ci: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fault", (*SAYS, "none") if IS_WHOLE else in_ci)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled programs, kept from test to test."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def check(hosts: Rig, compiled: Path) -> Iterator[Callable[..., None]]:
    """Runs the training with a fault, and looks at what all processes have printed."""
    folder, cache = hosts.shared / "checkpoints", hosts.shared / "compiled"
    shutil.copytree(compiled, cache)

    def check(fault: str, *launch: str, **env: str) -> None:
        keep = f"JAX_COMPILATION_CACHE_DIR={cache} JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0"
        script = f"{keep} {hosts.python} {SCRIPT} {fault} {STEP} {STEP + 4} {folder}"
        argv = (*launch, "sh", "-c", f"{script}; echo status $?")
        done = hosts["h0"].run(*argv, env=env, check=False, timeout_s=LIMIT_S)
        told = done.stdout + done.stderr
        statuses = sorted(re.findall(r"status (\d+)", told))
        if fault == "none":
            assert statuses == ["0"] * SIZE, told
            assert len(set(re.findall(r"loss (\S+),", told))) == 1, told
            return
        assert statuses == ["1"] * (SIZE - 1) + ["137" if fault == "dies" else "1"], told
        made = re.search(rf"^(\S+) \[1\] makes {fault}$", told, re.M)
        assert made is not None, told
        named = re.findall(rf"^(\S+) \[(\d)\] .*{re.escape(SAYS[fault])}", told, re.M)
        assert {rank for _, rank in named} == {"0", "2", *("1" * (fault != "dies"))}, told
        soon_s = 30.0 if fault == "shape" else SOON_S  # on CPU it is compiled first
        assert max(float(when) for when, _ in named) - float(made[1]) < soon_s, told

    yield check
    shutil.copytree(cache, compiled, dirs_exist_ok=True)
    shutil.rmtree(cache)
    shutil.rmtree(folder, ignore_errors=True)


@faults("skip", "dies")
def test_under_srun_a_fault_of_one_process_is_named_on_all(
    slurm: Rig, check: Callable[..., None], fault: str
) -> None:
    check(fault, "srun", "--nodes=2", f"--ntasks={SIZE}", "--cpus-per-task=1")


@faults("rate")
def test_under_open_mpi_a_fault_of_one_process_is_named_on_all(
    ssh: Rig, check: Callable[..., None], fault: str
) -> None:
    check(fault, *provided(lambda: find_mpi("openmpi4")).argv({"h0": 2, "h1": 1}))


@faults("ends")
def test_under_mpich_a_fault_of_one_process_is_named_on_all(
    ssh: Rig, check: Callable[..., None], fault: str
) -> None:
    mpi = provided(lambda: find_mpi("mpich"))
    check(fault, *mpi.argv({"h0": 2, "h1": 1}), COORDINATOR=f"{ssh['h0'].address}:7391")
