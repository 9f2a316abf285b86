"""A log of lines in files of a folder, of which the oldest go."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jaxcluster.host.ringfile import Log, read


def line(number: int) -> bytes:
    return b"%09d\n" % number


def numbers(data: bytes | memoryview) -> list[int]:
    return [int(found) for found in bytes(data).split()]


def test_all_that_was_written_is_read_on_from_anywhere(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", 10_000)
    at = 0
    seen = []
    for number in range(500):
        log.write(line(number))
        if number % 7 == 0:
            part = read(tmp_path / "log", at)
            seen += numbers(part.data)
            at = part.end
            assert part.end == part.size == log.end
    seen += numbers(read(tmp_path / "log", at).data)
    assert seen == list(range(500))
    assert len(list(tmp_path.iterdir())) > 1
    at, seen = 0, []
    while (part := read(tmp_path / "log", at, 95)).data:  # whole lines
        assert len(part.data) <= 95
        seen += numbers(part.data)
        at = part.end
    assert seen == list(range(500))


def test_of_too_much_the_oldest_goes(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", 10_000)
    for number in range(5_000):
        log.write(line(number))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    part = read(tmp_path / "log", 100)
    found = numbers(part.data)
    assert found == list(range(found[0], 5_000))
    assert len(found) * 11 >= 7_500 - 2_500
    assert part.start == 11 * found[0]
    assert part.end == part.size


def test_another_process_goes_on_behind_half_a_line(tmp_path: Path) -> None:
    Log(tmp_path / "log", 10_000).write(line(1))
    (path,) = tmp_path.iterdir()
    with open(path, "ab") as file:
        file.write(b"half")
    Log(tmp_path / "log", 10_000).write(line(2))
    assert bytes(read(tmp_path / "log").data) == b"\n" + line(1) + b"half\n" + line(2)
    assert read(tmp_path / "log", read(tmp_path / "log").end).data == b""


def test_a_folder_that_was_removed_does_not_come_back(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    log = Log(cluster / "rank-0" / "log", 100)
    log.write(line(1) * 5)
    shutil.rmtree(cluster)
    with pytest.raises(FileNotFoundError):
        log.write(line(2))
    assert not cluster.exists()


def test_nothing_is_read_through_a_link_and_nothing_written(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"secret\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "log.000000000000000").symlink_to(other)
    assert read(folder / "log").data == b""
    with pytest.raises(OSError, match="symbolic links"):
        Log(folder / "log", 10_000).write(line(1))
    assert other.read_bytes() == b"secret\n"


def test_what_is_not_there_is_empty(tmp_path: Path) -> None:
    part = read(tmp_path / "nowhere" / "log", 5)
    assert (part.start, part.end, part.size, part.data) == (5, 5, 5, b"")
