"""A process that has used up its limits can still be saved."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from jaxcluster.engine.state import saved
from jaxcluster.engine.state.saved import AtLimit, Saved, write_where_room
from jaxcluster.wire.ops.state import SavePlace

BEGIN = """
import os, resource, threading
from jaxcluster.host import limits
def is_full():
    try:
        open("/dev/null").close()
    except OSError:
        return True
def fill(): # to the last one
    found = []
    try:
        while True:
            found.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return found
here = len(os.listdir("/proc/self/fd"))
files, sizes = resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE
"""


def run(source: str, folder: Path) -> None:
    source = BEGIN + textwrap.dedent(source)
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_some_files_are_held_in_reserve(tmp_path: Path) -> None:
    source = """
    resource.setrlimit(files, (here + 40, here + 40))
    limits.hold_reserve()
    rest = fill()
    assert 20 < len(rest) < 30
    for _ in range(2):
        with limits.lifted():
            with limits.lifted():
                assert len([open("/dev/null") for _ in range(limits.RESERVE)]) == 16
            assert not is_full()
        assert is_full()
    os.close(rest.pop())
    assert not is_full()
    """
    run(source, tmp_path)


def test_a_cells_own_files_are_left_alone(tmp_path: Path) -> None:
    """It may have closed all that it did not know, and opened others."""
    source = """
    limits.hold_reserve()
    mine = os.open("/dev/null", os.O_RDONLY)
    os.closerange(3, 60)
    again = [os.open("/dev/null", os.O_RDONLY) for _ in range(30)]
    with limits.lifted():
        assert all(os.fstat(one) for one in again)
    assert all(os.fstat(one) for one in again)
    """
    run(source, tmp_path)


def test_soft_limits_are_hard_ones_for_a_moment(tmp_path: Path) -> None:
    source = """
    resource.setrlimit(files, (here + 1, here + 40))
    resource.setrlimit(sizes, (10, resource.RLIM_INFINITY))
    limits.hold_reserve()
    fill()
    with limits.lifted():
        with open("large", "wb") as file:
            file.write(bytes(1000))
    assert os.stat("large").st_size == 1000
    assert resource.getrlimit(files) == (here + 1, here + 40)
    assert resource.getrlimit(sizes) == (10, resource.RLIM_INFINITY)
    with limits.lifted():
        resource.setrlimit(sizes, (20, resource.RLIM_INFINITY))  # by a cell
    assert resource.getrlimit(sizes)[0] == 20
    """
    run(source, tmp_path)


def test_a_limit_is_not_called_a_lack_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(saved, "write", refuse)
    with pytest.raises(AtLimit) as caught:
        write_where_room(Saved(0, 1, 1, {}), 0, [SavePlace(str(tmp_path))])
    assert str(caught.value) == f"its 0 MiB can't be written: {tmp_path} (Too many open files)"
