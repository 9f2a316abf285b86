"""What a process says of its host, read from made-up ``/dev`` and ``/proc`` folders."""

from __future__ import annotations

import importlib.metadata
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxcluster.host import facts
from jaxcluster.host.facts import (
    engine_facts,
    gpu_platform,
    host_gpus,
    host_tpu_chips,
)
from jaxcluster.supervision.processes import space

POD = {
    "JAX_FORCE_TPU_INIT": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_ID": "2",
    "TPU_WORKER_HOSTNAMES": "t0,t1,t2",
}


GPUS = "proc/driver/nvidia/gpus"


@pytest.fixture
def make_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes files of a made-up host, with this text in them."""
    monkeypatch.setattr(facts, "ROOT", tmp_path)

    def make(*names: str, text: str = "") -> None:
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return make


def make_amd(make_files: Callable[..., None], gpus: int) -> None:
    """What AMD's driver says of a host with one processor and some GPUs."""
    for number in range(gpus + 1):
        text = f"cpu_cores_count 64\nsimd_count {304 * bool(number)}\nmem_banks_count 1\n"
        make_files(f"sys/class/kfd/kfd/topology/nodes/{number}/properties", text=text)


# --------------------------------------------------------------------------- GPU


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("0,1", ["0", "1"]),
        (" 3 , 1 ", ["3", "1"]),
        ("GPU-8f3a,MIG-11d2", ["GPU-8f3a", "MIG-11d2"]),
        ("", []),
        ("NoDevFiles", []),
        ("0,-1,1", ["0"]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    visible: str, gpus: list[str], make_files: Callable[..., None]
) -> None:
    make_files(*(f"dev/nvidia{n}" for n in range(4)))
    assert host_gpus({"CUDA_VISIBLE_DEVICES": visible}) == gpus


@pytest.mark.parametrize("cards", [0, 1])
def test_a_container_has_the_cards_in_its_dev_and_not_its_nodes(
    cards: int, make_files: Callable[..., None]
) -> None:
    make_files(*(f"{GPUS}/0000:{bus}:00.0/information" for bus in range(8)))
    make_files("dev/nvidiactl", *[f"dev/nvidia{n}" for n in range(3, 3 + cards)])
    make_amd(make_files, 1)
    assert host_gpus({}) == ["0"] if cards else len(host_gpus({})) == 8
    make_files(".dockerenv")
    assert host_gpus({}) == ["0"]  # NVIDIA's, or else AMD's
    assert gpu_platform() == ("cuda" if cards else "rocm")


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, ["2", "0"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, ["0", "1"]),  # HIP counts in what is left
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "3"}, ["3"]),  # HIP reads it, too
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_amd_s_gpus_are_those_of_hip(
    environ: dict[str, str], gpus: list[str], make_files: Callable[..., None]
) -> None:
    make_amd(make_files, 4)
    assert (host_gpus(environ), gpu_platform()) == (gpus, "rocm")
    make_files("dev/nvidia0")
    assert (host_gpus({"HIP_VISIBLE_DEVICES": "2"}), gpu_platform()) == (["0"], "cuda")


# --------------------------------------------------------------------------- TPU


def test_accel_nodes_are_tpu_chips_and_the_kernels_own_folder_is_none(
    make_files: Callable[..., None],
) -> None:
    make_files("dev/accel/accel0")
    assert host_tpu_chips() == 0
    make_files(*(f"dev/accel{n}" for n in range(4)))
    assert host_tpu_chips() == 4


@pytest.mark.parametrize(("vendor", "chips"), [("0x1ae0\n", 2), ("0x10de\n", 0)])
def test_vfio_groups_are_tpu_chips_where_the_bus_carries_googles(
    vendor: str, chips: int, make_files: Callable[..., None]
) -> None:
    make_files("dev/vfio/0", "dev/vfio/1", "dev/vfio/vfio")
    make_files("sys/bus/pci/devices/0000:00:05.0/class")
    make_files("sys/bus/pci/devices/0000:00:04.0/vendor", text=vendor)
    assert host_tpu_chips() == chips


# --------------------------------------------------------------------------- host


def test_engine_facts_of_this_process_are_true() -> None:
    said = engine_facts(3, environ={"CUDA_VISIBLE_DEVICES": "4", "NPROC": "99", **POD})
    assert said.cores == 99
    assert (said.rank, said.pid) == (3, os.getpid())
    assert (said.hostname, said.host_key) == (socket.gethostname(), space("net"))
    assert said.jax == importlib.metadata.version("jax")
    assert said.gpus == ["4"]
    assert (said.tpu_worker_id, said.tpu_hosts) == (2, ["t0", "t1", "t2"])
    # One name in all messages: in a death, which its agent tells, as in a divergence.
    assert engine_facts(0, "pod-w1").hostname == "pod-w1"
