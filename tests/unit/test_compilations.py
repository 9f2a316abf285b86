"""Which programs are kept for new processes, where, and under which keys."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import jax.numpy as jnp
import pytest
from helpers import python

from jaxcluster.rank.private import compilations
from jaxcluster.rank.private.compilations import read, write


def test_an_executable_is_held_until_nobody_has_it_and_another_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA waits for all that runs: a collection on another thread must not drop the last one."""
    unloaded = []

    class Executable:
        def __del__(self) -> None:
            unloaded.append("gone")

    monkeypatch.setattr(compilations, "_held", {})
    is_idle = False
    monkeypatch.setattr(compilations, "is_ready", lambda array: is_idle)
    array = jnp.ones(2)
    compilations.hold(used := Executable())
    compilations.hold(Executable())
    compilations.hold(third := Executable())
    assert not unloaded  # something runs
    is_idle = True
    compilations.hold(last := Executable())
    assert unloaded == ["gone"] and len(compilations._held) == 3
    assert all(one is not None for one in (array, used, third, last))


# --------------------------------------------------------------------------- the folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compilations, "MAX_NBYTES", 1000)
    return tmp_path / "compiled"


def keep(folder: Path, key: str, nbytes: int = 100) -> bytes:
    content = os.urandom(nbytes)
    write(folder, key, content)
    return content


def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        keep(folder, "a")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(folder)
    assert read(tmp_path / "link", "a") is None
    folder.chmod(0o770)
    assert read(folder, "a") is None
    keep(folder, "b")
    assert os.listdir(folder) == ["a"]


@pytest.mark.parametrize("cut", [0, 10, 99, None])
def test_what_is_not_whole_is_not_there(folder: Path, cut: int | None) -> None:
    content = keep(folder, "a")
    assert (read(folder, "a"), read(folder, "b")) == (content, None)
    whole = (folder / "a").read_bytes()
    changed = whole[:cut] if cut is not None else whole[:-1] + bytes([whole[-1] ^ 1])
    (folder / "a").write_bytes(changed)
    assert read(folder, "a") is None
    write(folder, "a", content)
    assert (read(folder, "a"), os.listdir(folder)) == (content, ["a"])


def test_a_full_folder_is_emptied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(folder, "too large", nbytes=1001)
    (folder / "of a dead writer").write_bytes(b"begun")
    for number in range(8):
        keep(folder, str(number))
    assert len(os.listdir(folder)) == 9
    keep(folder, "last", nbytes=300)
    assert os.listdir(folder) == ["last"]
    monkeypatch.setattr(compilations, "memory_room", lambda path: 150 * compilations.SHARE - 320)
    keep(folder, "share")
    assert os.listdir(folder) == ["share"]


LOADED = """
import pathlib, sys
import jax, jax.numpy as jnp
from jax.experimental import serialize_executable
from jaxcluster.rank.private.compilations import keep_compiled
assert keep_compiled(pathlib.Path(sys.argv[1], "kept"))
for _ in range(2):
    compiled = jax.jit(lambda a: jnp.sum(a) * 3).lower(jnp.arange(4.0)).compile()
    again = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
    print(again(jnp.arange(4.0)))
    jax.clear_caches()
"""


def test_a_program_that_was_loaded_can_be_serialized(tmp_path: Path) -> None:
    done = python("-c", LOADED, str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "18.0\n18.0\n"), done.stderr
