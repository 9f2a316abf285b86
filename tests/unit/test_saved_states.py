"""Where ranks' variables are kept, and what can still be read of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.errors import RecoveryError
from jaxcluster.records import saved_states
from jaxcluster.records.saved_states import Kept, LocalStates
from jaxcluster.wire.ops.saving import Saved


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memory", "run"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setattr(saved_states, "SHARED_MEMORY", tmp_path / "memory")
    monkeypatch.setattr(saved_states.registry, "runtime_root", lambda: tmp_path / "run")
    monkeypatch.delenv("TMPDIR", raising=False)


def unseen(paths: Sequence[Path]) -> Callable[[], None]:
    """Nobody looks after them."""
    return lambda: None


@pytest.fixture
def folder() -> Iterator[LocalStates]:
    made = LocalStates(2, unseen)
    yield made
    made.remove()


def write(folder: LocalStates, rank: int) -> Saved:
    """What a rank says of a file that it has written."""
    where, name = folder.places_for(rank)[0][0], f"rank-{rank}.state"
    Path(where, name).write_bytes(b"x" * 10)
    return Saved(where, [name], 10, ["a"], {"b": "why"})


def test_memory_is_shared_out_and_a_disk_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(saved_states, "memory_room", lambda path: 1000)
    folder = LocalStates(4, unseen)
    (memory, room), (disk, unlimited) = folder.places_for(0)
    assert Path(memory).parent.name == "memory" and room == 250
    assert Path(disk).parent.name == "run" and unlimited is None
    folder.remove()


def test_a_folder_that_one_names_is_used_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "big").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "big"))
    folder = LocalStates(1, unseen)
    assert [path.parent.name for path in folder.paths] == ["memory", "run", "big"]
    assert sorted(saved_states.folders()) == sorted(folder.paths)  # for the next start, if need be
    folder.remove()


def test_folders_are_for_their_owner_alone_and_for_their_owner() -> None:
    before = os.umask(0o777)
    try:
        folder = LocalStates(1, unseen)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.paths} == {0o700}
    folder.remove()


def test_where_no_folder_can_be_made_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(**_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_states.tempfile, "mkdtemp", full)
    with pytest.raises(RecoveryError, match=r"memory: No space left on device; .*run: No space"):
        LocalStates(1, unseen)


def test_it_is_looked_after_until_it_is_removed() -> None:
    told: list[object] = []

    def look_after(paths: Sequence[Path]) -> Any:
        told.extend(paths)
        return lambda: told.append("left")

    folder = LocalStates(1, look_after)
    assert told == folder.paths
    folder.remove()
    folder.remove()
    assert told[2:] == ["left"]


def test_what_can_not_be_read_any_more_is_left_out_with_the_reason(folder: LocalStates) -> None:
    reports = {rank: write(folder, rank) for rank in range(3)}
    saved = Kept(folder, reports, 4, {3: frozenset("c")}, {3: "no answer"})
    assert saved.looked_at() == saved
    gone = replace(reports[1], folder="/nowhere")
    found = replace(saved, reports={**reports, 1: gone}).looked_at()
    assert sorted(found.reports) == [0, 2]
    assert found.had == {1: frozenset(reports[1].kept), 3: frozenset("c")}
    assert found.gone == {1: "/nowhere is gone", 3: "no answer"}
    assert "rank 1: /nowhere is gone" in found.why_gone and "rank 3: no answer" in found.why_gone
    assert found.looked_at() == found
