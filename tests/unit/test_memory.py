"""How much may be written, in memory above all; another process's memory is read where it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jaxcluster.host.free_space import free_memory, memory_room
from jaxcluster.host.memory import allow_reader, read_memory


def test_memory_is_read_where_it_is() -> None:
    values, copy = np.arange(1 << 16), np.empty(1 << 16, np.int64)
    allow_reader(os.getpid())
    read_memory(os.getpid(), values.ctypes.data, copy)
    np.testing.assert_array_equal(values, copy)


def test_what_can_not_be_read_is_an_error() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(ProcessLookupError):
        read_memory(gone.pid, 4096, np.empty(8, np.uint8))
    with pytest.raises(OSError, match="Bad address"):
        read_memory(os.getpid(), 8, np.empty(8, np.uint8))


GIB = 1 << 30


@pytest.fixture
def info(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 16777216 kB\nMemFree: 100 kB\nMemAvailable: 8388608 kB\n")
    return path


def test_memory_is_what_the_kernel_says_is_available(info: Path, tmp_path: Path) -> None:
    assert free_memory(info, tmp_path) == 8 * GIB


def test_a_containers_limit_counts_without_the_files_that_it_has_read(
    info: Path, tmp_path: Path
) -> None:
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{3 * GIB}\n")
    assert free_memory(info, tmp_path) == GIB
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {GIB}\n")
    assert free_memory(info, tmp_path) == 2 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(info, tmp_path) == 8 * GIB


def test_nobody_is_starved_and_no_file_system_overfilled(info: Path, tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert memory_room(tmp_path, info, tmp_path) <= min(7 * GIB, free + GIB)
    assert memory_room(tmp_path, tmp_path / "none", tmp_path) <= free + GIB
