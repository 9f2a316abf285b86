"""Another process's memory is read where it is."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest

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
