"""A process that may open no more files can still be saved."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxcluster.engine.state import spare


@pytest.fixture
def limits() -> Iterator[None]:
    before = {limit: resource.getrlimit(limit) for limit in spare.LIMITS}
    yield
    for limit, each in before.items():
        resource.setrlimit(limit, each)
    while spare._held:
        os.close(spare._held.pop())


def open_all(few: int = 64) -> list[int]:
    """Take all descriptors that this process may have."""
    found: list[int] = []
    most = max(map(int, os.listdir("/proc/self/fd"))) + few
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    try:
        while True:
            found.append(os.open("/proc/self/status", os.O_RDONLY))
    except OSError as error:
        assert error.errno == errno.EMFILE
    return found


def write(path: Path) -> None:
    with open(path, "wb") as file, open(path, "rb"):
        file.write(b"some")


@pytest.mark.parametrize("can_lift", [True, False])
def test_what_is_held_and_what_limits_allow_is_there_meanwhile(
    limits: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_lift: bool
) -> None:
    if can_lift:
        monkeypatch.setattr(spare, "SPARE", 0)
    spare.hold()
    opened = open_all()
    low = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with monkeypatch.context() as patch:
            if not can_lift:
                patch.setattr(resource, "setrlimit", lambda limit, to: None)
            with pytest.raises(OSError, match="Too many open files"):
                write(tmp_path / "a")
            with spare.released():
                write(tmp_path / "a")
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == low
        with pytest.raises(OSError, match="Too many open files"):
            write(tmp_path / "b")
        with spare.released():
            write(tmp_path / "b")
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_a_limit_of_a_files_size_is_lifted(limits: None, tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    with spare.released():
        write(tmp_path / "a")
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == (0, hard)


def test_a_number_that_is_another_files_by_now_is_left_alone(limits: None) -> None:
    spare.hold()
    taken = spare._held[-1]
    os.close(taken)
    reader, writer = os.pipe()
    os.dup2(reader, taken)
    try:
        with spare.released():
            os.fstat(taken)
    finally:
        for descriptor in {reader, writer, taken}:
            os.close(descriptor)
