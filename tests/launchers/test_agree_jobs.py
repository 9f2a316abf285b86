"""A training job that calls ``jaxcluster.agree()``, under srun and two mpiexec: see training.py.

A few of the faults, early, are part of CI. With ``JAXCLUSTER_FAULT_STEP=1000`` each launcher has
each fault at that step, which takes half an hour.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rig import Rig, find_mpi, provided

pytest.importorskip("flax")
pytest.importorskip("grain")

SCRIPT = Path(__file__).parents[1] / "jobs" / "training.py"
STEP = int(os.environ.get("JAXCLUSTER_FAULT_STEP", "6"))
IS_WHOLE = "JAXCLUSTER_FAULT_STEP" in os.environ
SOON_S = 1.0 if IS_WHOLE else 5.0  # four tests share two cores
LIMIT_S = 280.0
SIZE = 4
SAYS = {
    "skip": "came to launch one program with different values.",
    "ends": "Rank 1 ended the script without the launch that ranks",
    "raises": "ValueError: a bad batch",
    "dies": "Rank 1 died.",
    "shape": "came to launch different programs.",
    "rate": "came to launch one program with different values.",
}
IN_CI = {
    "srun": ("skip", "dies", "none"),
    "openmpi4": ("rate", "ends"),
    "mpich": ("raises", "shape"),
}
CASES = [
    (launcher, fault)
    for launcher, faults in IN_CI.items()
    for fault in ((*SAYS, "none") if IS_WHOLE else faults)
]
pytestmark = [pytest.mark.newest_jax, pytest.mark.timeout(LIMIT_S + 20)]


@pytest.fixture(scope="module")
def compiled(hosts: Rig) -> Iterator[Path]:
    """Compiled programs, kept from test to test."""
    yield from _folder(hosts, "compiled")


@pytest.fixture
def folder(hosts: Rig) -> Iterator[Path]:
    """For checkpoints. All hosts see it."""
    yield from _folder(hosts, "checkpoints")


def _folder(hosts: Rig, name: str) -> Iterator[Path]:
    made = hosts.shared / name
    made.mkdir()
    yield made
    shutil.rmtree(made)


@pytest.fixture
def run(request: pytest.FixtureRequest, hosts: Rig) -> Callable[[str, str], str]:
    """Runs a shell's command in each process, by a launcher; returns what all have printed."""

    def run(launcher: str, command: str) -> str:
        rig = request.getfixturevalue("slurm" if launcher == "srun" else "ssh")
        shell, env = ("sh", "-c", command), {}
        if launcher == "srun":
            argv = ["srun", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", *shell]
        else:
            mpi = provided(lambda: find_mpi(launcher))
            argv = mpi.argv({"h0": 2, "h1": 2}, *shell)
            if launcher == "mpich":
                env = {"COORDINATOR": f"{rig['h0'].address}:7391"}
        done = rig["h0"].run(*argv, env=env, check=False, timeout_s=LIMIT_S)
        return done.stdout + done.stderr

    return run


@pytest.mark.parametrize(("launcher", "fault"), CASES)
def test_a_fault_of_one_process_is_named_on_all(
    hosts: Rig,
    run: Callable[[str, str], str],
    compiled: Path,
    folder: Path,
    launcher: str,
    fault: str,
) -> None:
    cache = f"JAX_COMPILATION_CACHE_DIR={compiled} JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0"
    script = f"{cache} {hosts.python} {SCRIPT} {fault} {STEP} {STEP + 4} {folder}"
    told = run(launcher, f"{script}; echo status $?")
    statuses = sorted(re.findall(r"status (\d+)", told))
    if fault == "none":
        assert statuses == ["0"] * SIZE, told
        assert len(set(re.findall(r"loss (\S+),", told))) == 1
        return
    assert statuses == ["1"] * 3 + ["137" if fault == "dies" else "1"], told
    made = re.search(rf"^(\S+) \[1\] makes {fault}$", told, re.M)
    assert made is not None, told
    named = {
        rank: float(when)
        for when, rank in re.findall(rf"^(\S+) \[(\d)\] .*{re.escape(SAYS[fault])}", told, re.M)
    }
    assert {*named} == {"0", "2", "3"} | ({"1"} if fault != "dies" else set()), told
    assert max(named.values()) - float(made[1]) < SOON_S, told
