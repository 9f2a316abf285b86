"""What a process says of its host, read from made-up ``/dev`` and ``/proc`` folders."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxcluster.host.facts import (
    cores,
    engine_facts,
    gpu_kind,
    gpu_platform,
    gpu_plugin_installed,
    host_gpus,
    host_key,
    host_tpu_chips,
    in_container,
)

POD = {
    "JAX_FORCE_TPU_INIT": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_ID": "2",
    "TPU_WORKER_HOSTNAMES": "t0,t1,t2",
}


def make_files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


# --------------------------------------------------------------------------- GPU


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("0,1", ["0", "1"]),
        (" 3 , 1 ", ["3", "1"]),
        ("GPU-8f3a,MIG-11d2", ["GPU-8f3a", "MIG-11d2"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", ["0"]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    visible: str, gpus: list[str], tmp_path: Path
) -> None:
    dev = make_files(tmp_path, "nvidia0", "nvidia1", "nvidia2", "nvidia3")
    assert host_gpus({"CUDA_VISIBLE_DEVICES": visible}, proc=tmp_path / "no", dev=dev) == gpus


def test_gpus_are_counted_in_the_drivers_folder(tmp_path: Path) -> None:
    proc = make_files(tmp_path / "gpus", "0000:1b:00.0/information", "0000:43:00.0/information")
    assert host_gpus({}, proc=proc, dev=tmp_path / "no", contained=False) == ["0", "1"]


@pytest.mark.parametrize("cards", [0, 1])
def test_a_container_has_the_cards_in_its_dev_and_not_its_nodes(cards: int, tmp_path: Path) -> None:
    proc = make_files(tmp_path / "gpus", *(f"0000:{bus}:00.0/information" for bus in range(8)))
    dev = make_files(tmp_path / "dev", "nvidiactl", *[f"nvidia{n}" for n in range(3, 3 + cards)])
    kfd = amd_nodes(tmp_path / "kfd", 1)
    places = {"proc": proc, "dev": dev}
    assert host_gpus({}, **places, contained=True) == ["0"][:cards]
    assert gpu_platform(**places, kfd=kfd, contained=True) == ("cuda" if cards else "rocm")
    if cards:  # of a container that bears no mark
        assert host_gpus({}, **places, contained=False) == ["0"]


def test_what_marks_a_container(tmp_path: Path) -> None:
    mark = tmp_path / ".dockerenv"
    assert not in_container({}, [mark])
    assert in_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, [mark])
    mark.touch()
    assert in_container({}, [mark])


def test_a_host_without_gpus_has_none(tmp_path: Path) -> None:
    assert host_gpus({}, proc=tmp_path / "no", dev=tmp_path) == []


def test_cuda_plugin_is_found_by_name_alone() -> None:
    def only(wanted: str) -> Callable[[str], object | None]:
        return lambda name: object() if name == wanted else None

    assert gpu_plugin_installed("cuda", only("jax_cuda13_plugin"))
    assert not gpu_plugin_installed("cuda", only("jax_rocm7_plugin"))
    assert gpu_plugin_installed("rocm", only("jax_rocm7_plugin"))
    assert not gpu_plugin_installed("cuda", lambda name: None)


def amd_nodes(folder: Path, gpus: int) -> Path:
    """What AMD's driver says of a host with one processor and some GPUs."""
    for number in range(gpus + 1):
        (folder / str(number)).mkdir(parents=True)
        simds = 0 if number == 0 else 304
        text = f"cpu_cores_count 64\nsimd_count {simds}\nmem_banks_count 1\n"
        (folder / str(number) / "properties").write_text(text)
    return folder


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
    environ: dict[str, str], gpus: list[str], tmp_path: Path
) -> None:
    places = {"proc": tmp_path / "no", "dev": tmp_path / "no"}
    kfd = amd_nodes(tmp_path / "kfd", 4)
    assert host_gpus(environ, **places, kfd=kfd) == gpus
    assert gpu_platform(**places, kfd=kfd) == "rocm"
    nvidia = make_files(tmp_path / "dev", "nvidia0")
    assert host_gpus({"HIP_VISIBLE_DEVICES": "2"}, proc=tmp_path / "no", dev=nvidia, kfd=kfd) == [
        "0"
    ]
    assert gpu_platform(proc=tmp_path / "no", dev=nvidia, kfd=kfd) == "cuda"


def test_cards_and_driver_are_named(tmp_path: Path) -> None:
    assert gpu_kind(driver=tmp_path) == ""
    for bus in ("0000:1b:00.0", "0000:43:00.0"):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 144\n"
        (tmp_path / "gpus" / bus / "information").write_text(text)
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024\n"
    (tmp_path / "version").write_text(version)
    assert gpu_kind(driver=tmp_path) == "NVIDIA H200, driver 550.54.15"
    open_one = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release\n"
    (tmp_path / "version").write_text(open_one)
    assert gpu_kind(driver=tmp_path) == "NVIDIA H200, driver 570.124.06"


# --------------------------------------------------------------------------- TPU


def test_accel_nodes_are_tpu_chips(tmp_path: Path) -> None:
    dev = make_files(tmp_path, "accel0", "accel1", "accel2", "accel3")
    assert host_tpu_chips(dev=dev, pci=tmp_path / "no") == 4


def test_the_kernels_accel_folder_is_no_tpu_chip(tmp_path: Path) -> None:
    dev = make_files(tmp_path, "accel/accel0")
    assert host_tpu_chips(dev=dev, pci=tmp_path / "no") == 0


@pytest.mark.parametrize(("vendor", "chips"), [("0x1ae0\n", 2), ("0x10de\n", 0)])
def test_vfio_groups_are_tpu_chips_where_the_bus_carries_googles(
    vendor: str, chips: int, tmp_path: Path
) -> None:
    dev = make_files(tmp_path / "dev", "vfio/0", "vfio/1", "vfio/vfio")
    pci = make_files(tmp_path / "pci", "0000:00:04.0/vendor", "0000:00:05.0/class")
    (pci / "0000:00:04.0/vendor").write_text(vendor)
    assert host_tpu_chips(dev=dev, pci=pci) == chips


# --------------------------------------------------------------------------- host


def test_containers_of_one_machine_are_different_hosts(tmp_path: Path) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("5d5ecd85\n")
    for name in ("one", "other"):
        (tmp_path / name).symlink_to(f"net:[{name}]")
    keys = {host_key(boot_id=boot_id, net_namespace=tmp_path / name) for name in ("one", "other")}
    assert keys == {"5d5ecd85 net:[one]", "5d5ecd85 net:[other]"}


def test_engine_facts_of_this_process_are_true() -> None:
    facts = engine_facts(3, "10.0.0.7", environ={"CUDA_VISIBLE_DEVICES": "4", **POD})
    assert facts.rank == 3
    assert facts.pid == os.getpid()
    assert facts.hostname == socket.gethostname()
    assert facts.host_key == host_key()
    assert facts.address == "10.0.0.7"
    assert facts.jax == importlib.metadata.version("jax")
    assert facts.gpus == ["4"]
    assert facts.tpu_worker_id == 2
    assert facts.tpu_hosts == ["t0", "t1", "t2"]


def test_a_host_has_its_launchers_name() -> None:
    """One name in all messages: in a death, which its agent tells, as in a divergence."""
    assert engine_facts(0, "10.0.0.7", "pod-w1").hostname == "pod-w1"
    assert engine_facts(0).hostname == socket.gethostname()


def test_engine_facts_do_not_import_jax() -> None:
    code = (
        "import sys; from jaxcluster.host import facts; "
        "facts.engine_facts(0); facts.gpu_plugin_installed(); "
        "sys.exit('jax' in sys.modules or 'jaxlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cores_are_those_that_xla_would_size_its_pool_by() -> None:
    assert cores({"NPROC": "24"}) == 24
    for unset in ("", "0", "many", "-1"):
        assert cores({"NPROC": unset}) == len(os.sched_getaffinity(0))
    assert engine_facts(0, environ={"NPROC": "3"}).cores == 3
