"""What an agent does with files for its owner: where they may lie, and who may read them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.hosts.agent import folder as folders
from jaxcluster.hosts.agent import requests


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[folders.Folder]:
    """An agent's, where a user's own umask would let everybody read and write."""
    before = os.umask(0)
    (tmp_path / "place").mkdir()
    (tmp_path / "memory").mkdir()
    yield folders.make(tmp_path / "place", tmp_path / "memory")
    os.umask(before)


def answer(folder: folders.Folder, cmd: str, data: bytes = b"", **request: Any) -> Any:
    return requests.answer(folder, wire.request_in({"op": cmd, "body": request}), data)


def modes(top: Path) -> set[str]:
    """Of all that lies below it: ``d700`` of a folder, ``600`` of a file."""
    found = [(path.is_dir(), path.stat().st_mode & 0o777) for path in top.rglob("*")]
    return {f"{'d' if is_folder else ''}{mode:o}" for is_folder, mode in found}


def test_what_is_written_is_for_its_user_alone_whatever_the_umask(folder: folders.Folder) -> None:
    answer(folder, "mkdir", path="made")
    answer(folder, "put", b"x", path="put/a", at=0)
    assert (folder.path / "put/a").read_bytes() == b"x"
    assert modes(folder.path.parent) | modes(folder.memory.parent) == {"d700", "600"}


def test_nothing_is_written_outside_of_it(folder: folders.Folder, tmp_path: Path) -> None:
    answer(folder, "put", b"x", path="a", at=0)
    (folder.path / "link").symlink_to(tmp_path)
    for name in ("../out", str(tmp_path / "out"), "link/out"):
        for cmd in ("mkdir", "put", "remove", "get"):
            with pytest.raises(PermissionError):
                answer(folder, cmd, b"x", path=name)
    assert {path.name for path in tmp_path.iterdir()} == {"place", "memory"}
    assert (folder.path / "a").read_bytes() == b"x"


def test_memory_is_read_where_it_is(folder: folders.Folder) -> None:
    held = ctypes.create_string_buffer(b"values")
    for at, found in ((ctypes.addressof(held), b"values"), (8, b"")):
        assert answer(folder, "recall", pid=os.getpid(), at=at, nbytes=6) == (None, found)
