"""What NVML says, by a library that stands for it."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.host import gpus
from jaxcluster.rank.inspection import own_gpus
from jaxcluster.wire import GpuUse


class NVMLError(Exception):
    """As pynvml has it."""


def fake(**more: Any) -> types.SimpleNamespace:
    def handle(index: int) -> str:
        if index > 1:
            raise NVMLError("not found")
        return f"card {index}"

    def rates(card: str) -> Any:
        if card.startswith("MIG"):
            raise NVMLError("not supported")
        return types.SimpleNamespace(gpu=37)

    found = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetMemoryInfo": lambda card: types.SimpleNamespace(used=3, total=8),
        "nvmlDeviceGetUtilizationRates": rates,
    }
    return types.SimpleNamespace(**{**found, **more})


@pytest.fixture(autouse=True)
def unopened() -> Iterator[None]:
    gpus._library.cache_clear()
    yield
    gpus._library.cache_clear()


def test_each_visible_card_is_read_and_one_that_is_lost_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake())
    assert gpus.gpu_uses(["1", "MIG-a", "7"]) == [
        GpuUse("1", 37.0, 3, 8),
        GpuUse("MIG-a", None, 3, 8),
    ]


def test_what_others_compute_on_a_card_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"card 0": 60 << 30, "card 1": 0}

    def running(card: str) -> list[Any]:
        return [types.SimpleNamespace(pid=os.getpid())] if card == "card 0" else []

    monkeypatch.setitem(
        sys.modules,
        "pynvml",
        fake(
            nvmlDeviceGetMemoryInfo=lambda c: types.SimpleNamespace(used=used[c], total=80 << 30),
            nvmlDeviceGetComputeRunningProcesses=running,
        ),
    )
    (said,) = gpus.gpus_in_use(["0", "1"])
    assert said == f"GPU 0 has 60.0 GiB of its 80.0 GiB in use by process {os.getpid()}"
    used["card 1"] = 40 << 30  # by a container whose processes NVML does not tell
    assert gpus.gpus_in_use(["1"])[0].endswith("in use by an unseen process")
    assert gpus.gpus_in_use([]) == []


def test_without_the_library_or_a_driver_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.gpu_uses(["0"]) == []

    tried = []

    def no_driver() -> None:
        tried.append(1)
        raise NVMLError("driver not loaded")

    gpus._library.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", fake(nvmlInit=no_driver))
    assert gpus.gpu_uses(["0"]) == gpus.gpu_uses(["0"]) == []
    assert len(tried) == 1  # and is asked once


def test_a_ranks_gpus_are_those_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-b,6")
    devices = [
        wire.DeviceInfo(8, "H200", "gpu", local_hardware_id=1),
        wire.DeviceInfo(9, "H200", "cuda", local_hardware_id=2),
    ]
    assert own_gpus(devices) == ["GPU-b", "6"]
    assert own_gpus([wire.DeviceInfo(0, "cpu", "cpu", local_hardware_id=0)]) == []
