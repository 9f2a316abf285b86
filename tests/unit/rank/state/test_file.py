"""The format of saved variables: what was cut off or changed is found."""

from __future__ import annotations

import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxcluster.rank.state import file
from jaxcluster.rank.state.file import CHUNK, BadFile, StateFile

SIZES = [0, 1, 7, 64, 4095, CHUNK, 3 * CHUNK + 5]


def parts(sizes: list[int]) -> list[np.ndarray[Any, Any]]:
    return [np.arange(size, dtype=np.uint8) for size in sizes]


def test_sections_come_back_where_xla_takes_them_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for _ in range(2):  # the second time in place of the first
        file.write(path, parts(SIZES), {"names": ["x"]})
    assert [*tmp_path.iterdir()] == [path] and stat.S_IMODE(path.stat().st_mode) == 0o600
    read = StateFile(tmp_path / "a")
    assert read.about == {"names": ["x"]}
    for number, nbytes in enumerate(SIZES):
        copied = read.copy(number)
        assert copied.tobytes() == np.arange(nbytes, dtype=np.uint8).tobytes()
        assert not nbytes or copied.ctypes.data % 64 == 0
        copied[:] = 1  # it is its own
        assert not nbytes or read.copy(number).tobytes() != copied.tobytes()
    path.unlink()
    with pytest.raises(BadFile, match="can't be read"):
        read.copy(0)


def test_what_cells_change_meanwhile_is_whole(tmp_path: Path) -> None:
    """Each byte is the one before or the one after, and the checksums are of what was written."""
    own, stop = np.zeros(4 << 20, np.uint8), threading.Event()

    def change() -> None:
        while not stop.is_set():
            np.add(own, 1, out=own)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        file.write(tmp_path / "a", [own], {})
    finally:
        stop.set()
        thread.join()
    assert StateFile(tmp_path / "a").copy(0).nbytes == own.nbytes


@pytest.mark.parametrize("at", [0, 5, 42, 60, 80, 128, 4000, 2 * CHUNK, 3 * CHUNK, -1, -20, -60])
def test_a_changed_byte_is_found(tmp_path: Path, at: int) -> None:
    file.write(tmp_path / "a", parts(SIZES), {"names": []})
    data = bytearray((tmp_path / "a").read_bytes())
    data[at % len(data)] ^= 0x40
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(BadFile):
        read = StateFile(tmp_path / "a")
        for number in range(len(SIZES)):
            read.copy(number)


@pytest.mark.parametrize("size", [0, 10, 30, 40, 100, -1, -39, None])
def test_a_file_that_was_cut_off_or_is_gone_is_none(tmp_path: Path, size: int | None) -> None:
    path = tmp_path / "a"
    if size is not None:
        file.write(path, parts(SIZES), {})
        path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BadFile, match=str(path)):
        StateFile(path)
    for other in (b"something else", b"jaxcluster state 3\n"):
        path.write_bytes(other * 99)
        with pytest.raises(BadFile, match=r"is not of jaxcluster state .*, or no file of saved"):
            StateFile(path)
