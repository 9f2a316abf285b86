"""The folder of compiled programs: what it gives is whole and the user's own, and it is bounded."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest

from jaxcluster.engine.private import compilations
from jaxcluster.engine.private.compilations import CompiledFolder


@pytest.fixture
def folder(tmp_path: Path) -> CompiledFolder:
    return CompiledFolder(tmp_path / "compiled", max_nbytes=1000)


def keep(folder: CompiledFolder, key: str, nbytes: int = 100) -> bytes:
    content = os.urandom(nbytes)
    folder.write(key, lambda: content)
    return content


def keys(folder: CompiledFolder) -> set[str]:
    return set(os.listdir(folder.path))


def test_what_was_written_is_read_by_whoever_comes_later(folder: CompiledFolder) -> None:
    content = keep(folder, "a")
    assert CompiledFolder(folder.path).read("a") == content
    assert folder.read("b") is None


def test_a_folder_that_others_can_write_to_is_not_used(
    folder: CompiledFolder, tmp_path: Path
) -> None:
    umask = os.umask(0)
    try:
        keep(folder, "a")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder.path / "a").stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(folder.path)
    assert CompiledFolder(tmp_path / "link").read("a") is None
    folder.path.chmod(0o770)
    assert folder.read("a") is None
    keep(folder, "b")
    assert keys(folder) == {"a"}


@pytest.mark.parametrize("cut", [0, 10, 99, None])
def test_what_is_not_whole_is_not_there_and_is_written_again(
    folder: CompiledFolder, cut: int | None
) -> None:
    content = keep(folder, "a")
    whole = (folder.path / "a").read_bytes()
    changed = whole[:cut] if cut is not None else whole[:-1] + bytes([whole[-1] ^ 1])
    (folder.path / "a").write_bytes(changed)
    assert folder.read("a") is None
    folder.write("a", lambda: content)
    assert folder.read("a") == content


def test_one_of_several_writers_makes_the_bytes(folder: CompiledFolder) -> None:
    made = []
    begun, both = threading.Event(), threading.Event()

    def slow() -> bytes:
        made.append("slow")
        begun.set()
        assert both.wait(10)
        return b"content"

    writer = threading.Thread(target=folder.write, args=("a", slow))
    writer.start()
    assert begun.wait(10)
    folder.write("a", lambda: made.append("second") or b"content")  # type: ignore[func-returns-value]
    assert folder.read("a") is None  # half of it is never seen
    both.set()
    writer.join(10)
    folder.write("a", lambda: made.append("third") or b"content")  # type: ignore[func-returns-value]
    assert made == ["slow"]
    assert folder.read("a") == b"content"


def test_a_writer_that_fails_leaves_nothing(folder: CompiledFolder) -> None:
    def fail() -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        folder.write("a", fail)
    assert keys(folder) == set()
    content = keep(folder, "a")
    assert folder.read("a") == content


def test_what_a_dead_writer_has_begun_does_not_stay(folder: CompiledFolder) -> None:
    keep(folder, "a")
    for name, age_s in ("b.part", 2 * compilations.DEAD_S), ("d.part", 1):
        (folder.path / name).write_bytes(b"begun")
        os.utime(folder.path / name, times=(time.time() - age_s,) * 2)
    content = keep(folder, "b")
    assert folder.read("b") == content and keys(folder) == {"a", "b", "d.part"}


def test_a_full_folder_is_emptied(folder: CompiledFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(folder, "too large", nbytes=1001)
    for number in range(8):
        keep(folder, str(number))
    assert len(keys(folder)) == 8
    keep(folder, "last", nbytes=300)
    assert keys(folder) == {"last"}
    monkeypatch.setattr(compilations, "memory_room", lambda path: 150 * compilations.SHARE - 320)
    keep(folder, "share")
    assert keys(folder) == {"share"}
