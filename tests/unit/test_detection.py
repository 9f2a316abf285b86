"""The allocation that a notebook runs in, by the environment alone.

The variables are those of real runs: Slurm 22.05, Open MPI 4.1.4 and 5.0.11, MPICH 5.0.2.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.cluster import make_spec, sessions
from jaxcluster.errors import UsageError
from jaxcluster.host.tpus import TpuWorker, tpu_worker
from jaxcluster.launchers import base, tpu
from jaxcluster.launchers.base import Inside, find
from jaxcluster.launchers.slurm import Allocation, Slurm, allocation_of

JOB = {"SLURM_JOB_ID": "6", "SLURM_JOB_NODELIST": "h[1-2]", "SLURM_JOB_NUM_NODES": "2"}
SALLOC_N2 = {**JOB, "SLURM_TASKS_PER_NODE": "1(x2)"}  # salloc -N2
SALLOC_N3 = {**JOB, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}  # salloc -N2 -n3
SALLOC_2_2 = {
    **JOB,
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
STEP = {  # srun -N1 -n1 in salloc -N2 -n4: the notebook's own step
    **JOB,
    "SLURM_NTASKS": "1",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}
ONE_TASK = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "g1",
    "SLURM_NTASKS": "1",
    "SLURM_TASKS_PER_NODE": "1",
}


def found(
    environ: Mapping[str, str],
    worker: TpuWorker | None = None,
    missing: str = "",
) -> Inside | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "which", lambda name, **_: None if name == missing else name)
        patch.setattr(tpu, "tpu_worker", lambda *_: worker)
        return find(environ)


# ------------------------------------------------------------------------------------------ Slurm


@pytest.mark.parametrize(
    ("environ", "tasks", "what"),
    [
        (SALLOC_N2, (), "Slurm's job 6 (2 nodes)"),
        (SALLOC_N3, (2, 1), "Slurm's job 6 (2 nodes, 3 tasks)"),
        (SALLOC_2_2, (2, 2), "Slurm's job 6 (2 nodes, 4 tasks)"),
        (STEP, (), "Slurm's job 6 (2 nodes)"),
        (
            {**JOB, "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"},
            (2, 2),
            "Slurm's job 6 (2 nodes, 4 tasks)",
        ),
        (ONE_TASK, (), "Slurm's job 7 (1 node)"),
        ({**JOB, "SLURM_NTASKS_PER_NODE": "4"}, (4, 4), "Slurm's job 6 (2 nodes, 8 tasks)"),
    ],
)
def test_a_slurm_job_is_offered_with_its_tasks(
    environ: dict[str, str], tasks: tuple[int, ...], what: str
) -> None:
    here = allocation_of(environ)
    assert here is not None and here.tasks == tasks
    here_found = found(environ)
    assert here_found is not None and (here_found.what, here_found.launcher) == (what, "slurm")
    assert here_found.offer and not here_found.obstacle
    assert found({**environ, "SLURM_JOB_NODELIST": "h[1-"}) is None
    offer = f"This notebook runs in {what}. To use it: %jaxcluster start --launcher slurm   (or"
    assert Inside(what, "slurm").offer.startswith(offer)


def test_the_ranks_of_an_allocation_lie_where_srun_would_start_its_tasks() -> None:
    here = Allocation("6", ("h1", "h2", "h3"), (2, 2, 1))
    assert Slurm(allocation=here)._ranks(3) == (2, 2, 1)
    assert Slurm(allocation=here)._ranks(2) == (2, 2)
    assert Slurm(ntasks_per_node=1, allocation=here)._ranks(3) == (1, 1, 1)
    assert Slurm(num_processes=6, allocation=here)._ranks(3) == (2, 2, 2)
    assert Slurm(allocation=Allocation("6", ("h1", "h2")))._ranks(2) is None


def test_the_one_node_of_a_job_of_one_task_is_not_offered_to_itself() -> None:
    on_it = found({**ONE_TASK, "SLURMD_NODENAME": "g1"})
    assert on_it is not None and not on_it.offer and not on_it.obstacle
    several = found({**ONE_TASK, "SLURM_NTASKS_PER_NODE": "4", "SLURMD_NODENAME": "g1"})
    assert several is not None and several.offer
    lacking = found(SALLOC_2_2, missing="srun")
    assert lacking is not None and lacking.obstacle and not lacking.offer


# ------------------------------------------------------------------------------- batch systems


@pytest.mark.parametrize(
    ("variable", "job", "text", "what"),
    [
        ("PBS_NODEFILE", "PBS_JOBID", "h1\nh1\nh2\nh2\n", "PBS's job 5 (2 hosts, 4 slots)"),
        ("LSB_DJOB_HOSTFILE", "LSB_JOBID", "h1\nh2\n", "LSF's job 5 (2 hosts, 2 slots)"),
        ("PE_HOSTFILE", "JOB_ID", "h1 2 q\nh2 2 q\n", "Grid Engine's job 5 (2 hosts, 4 slots)"),
        ("PBS_NODEFILE", "PBS_JOBID", "h1\nh1\n", "PBS's job 5 (1 host, 2 slots)"),
        ("LSB_DJOB_HOSTFILE", "LSB_JOBID", "h1\nh1\nh1\n", None),  # cores: devices decide
        ("PE_HOSTFILE", "JOB_ID", "h1 16 q\n", None),
        ("PBS_NODEFILE", "PBS_JOBID", None, None),
    ],
)
def test_a_batch_system_s_job_is_mpiexec_s(
    variable: str, job: str, text: str | None, what: str | None, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "hosts").write_text(text)
    environ = {job: "5", variable: str(tmp_path / "hosts")}
    assert found(environ) == (Inside(what, "mpi") if what is not None else None)


# -------------------------------------------------------------------------------------------- TPU


@pytest.mark.parametrize(
    ("worker", "what", "obstacle"),
    [
        (TpuWorker(0, ("t0",)), None, ""),
        (TpuWorker(1, ("t0", "t1")), "a TPU slice of 2 hosts, as its worker 1", ""),
        (TpuWorker(0, ("t0", "t1"), 2), "2 TPU slices that work together", "on one slice only"),
    ],
)
def test_a_tpu_host_offers_its_slice(worker: TpuWorker, what: str | None, obstacle: str) -> None:
    here = found({}, worker=worker)
    if what is None:
        assert here is None
        return
    assert here is not None and here.launcher == "tpu" and what in here.what
    assert obstacle in here.obstacle and bool(obstacle) == bool(here.obstacle)


POD = {"JAX_FORCE_TPU_INIT": "1", "TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "p0,p1"}


def test_a_pod_s_slice_is_read_from_its_environment(tmp_path: Path) -> None:
    def worker(**more: str) -> TpuWorker | None:
        return tpu_worker(0, POD | more, ask=lambda *_: "")

    assert worker() == TpuWorker(1, ("p0", "p1"))
    assert worker(TPU_PROCESS_ADDRESSES="p0:8471,p1:8471") == TpuWorker(1, ("p0", "p1"))
    (tmp_path / "addresses").write_text("q0,q1,q2\n")
    file = str(tmp_path / "addresses")
    assert worker(TPU_PROCESS_ADDRESSES_PATH=file) == TpuWorker(1, ("q0", "q1", "q2"))
    assert worker(TPU_PROCESS_ADDRESSES_PATH="/no/such") is None
    assert worker(MEGASCALE_NUM_SLICES="2") == TpuWorker(1, ("p0", "p1"), 2)
    assert worker(TPU_WORKER_ID="none") is None
    slice_ = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "a,b"}
    assert tpu_worker(0, slice_, ask=lambda *_: pytest.fail("asked")) is None  # it has no chips


def test_a_virtual_machine_s_slice_is_read_from_its_metadata() -> None:
    """Without a variable that JAX reads: its workers have the order of their endpoints."""
    attributes = {
        "agent-worker-number": "1",
        "worker-network-endpoints": "a:0:10.0.0.5,b:1:10.0.0.6,c:2:10.0.0.7",
        "tpu-env": "ACCELERATOR_TYPE: 'v4-32'\nWORKER_ID: '1'\n",
    }
    found = tpu_worker(4, {}, ask=lambda key, environ: attributes.get(key, ""))
    assert found == TpuWorker(1, ("10.0.0.5", "10.0.0.6", "10.0.0.7"))


# ----------------------------------------------------------------------------------------- "auto"


def test_auto_takes_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def spec(here: Inside | None, **options: Any) -> Any:
        monkeypatch.setattr(base, "find", lambda: here)
        return make_spec(launcher="auto", platform="cpu", **options)

    job = Inside("Slurm's job 6", "slurm")
    assert spec(job).launcher == "slurm" and spec(job).num_processes == 0
    assert spec(job, num_processes=4).num_processes == 4
    batch = Inside("PBS's job 5", "mpi")
    assert spec(batch, hosts="h1:1").options == {"hosts": "h1:1"}
    assert not spec(batch).any_launcher
    assert spec(None).launcher == "local"
    with pytest.raises(
        UsageError, match=r"--launcher auto: .* Slurm's job 6, and there is no srun"
    ):
        spec(Inside("Slurm's job 6", "slurm", obstacle="there is no srun here"))
    with pytest.raises(UsageError, match=r"auto: this notebook runs in no allocation\. .*--partit"):
        spec(None, partition="gpu")


def test_only_a_start_that_names_no_launcher_is_offered_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "find", lambda: Inside("Slurm's job 6", "slurm"))
    assert "start --launcher slurm" in sessions.offer(make_spec(2, platform="cpu"))
    assert sessions.offer(make_spec(2, platform="cpu", launcher="local")) == ""
    monkeypatch.setattr(base, "find", lambda: None)
    assert sessions.offer(make_spec(2, platform="cpu")) == ""
