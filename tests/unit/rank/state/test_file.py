"""The format of saved variables: what was cut off or changed is found."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from jaxcluster.rank.state import file
from jaxcluster.rank.state.file import BLOCK, CHUNK, BadFile, Part, StateFile

SIZES = [0, 1, 7, 64, BLOCK - 1, BLOCK, 3 * BLOCK + 5, CHUNK, 2 * CHUNK + 3]


def parts() -> list[Part]:
    made = [np.arange(size, dtype=np.uint8) for size in SIZES]
    return [Part(one.nbytes, lambda one=one: one) for one in made]  # type: ignore[misc]


def test_sections_come_back_where_xla_takes_them_as_they_are(tmp_path: Path) -> None:
    size = file.write(tmp_path / "a", parts(), {"names": ["x"]})
    assert size == (tmp_path / "a").stat().st_size
    read = StateFile(tmp_path / "a")
    assert read.about == {"names": ["x"]}
    for number, nbytes in enumerate(SIZES):
        copied = read.copy(number)
        assert copied.tobytes() == np.arange(nbytes, dtype=np.uint8).tobytes()
        assert not nbytes or copied.ctypes.data % 64 == 0
        copied[:] = 1  # it is its own
        assert not nbytes or read.copy(number).tobytes() != copied.tobytes()


def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    file.write(tmp_path / "a", parts(), {})
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        file.write(tmp_path / "a", parts(), {})


@pytest.mark.parametrize("at", [0, 5, 64, 130, BLOCK + 300, 2 * CHUNK, 3 * CHUNK, -1, -20, -60])
def test_a_changed_byte_is_found(tmp_path: Path, at: int) -> None:
    path = tmp_path / "a"
    file.write(path, parts(), {"names": []})
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(BadFile):
        read = StateFile(path)
        for number in range(len(SIZES)):
            read.copy(number)


@pytest.mark.parametrize("size", [0, 10, 40, 100, 5000, -1, None])
def test_a_file_that_was_cut_off_or_is_gone_is_none(tmp_path: Path, size: int | None) -> None:
    path = tmp_path / "a"
    if size is not None:
        file.write(path, parts(), {})
        path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BadFile, match=str(path)):
        StateFile(path)
    path.write_bytes(b"something else" * 99)
    with pytest.raises(BadFile, match="no file of saved variables"):
        StateFile(path)
