"""Who has a cluster's name, and what may be removed under it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcluster import wire
from jaxcluster.cluster import live_records
from jaxcluster.cluster.starting import claim
from jaxcluster.errors import ClusterExists, JaxClusterError, LaunchError
from jaxcluster.hosts.records import claims, registry
from jaxcluster.hosts.records.claims import Life
from jaxcluster.hosts.records.registry import ClusterRecord
from jaxcluster.hosts.records.runtimefolder import CHOOSE
from jaxcluster.supervision.processes import pid_space


def record(name: str, owner: str = "", claim: str = "") -> ClusterRecord:
    spec = wire.ClusterSpec(name, 0)
    return ClusterRecord(name, spec, owner, 1, "box", claim=claim)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is was made on another host: its pids and locks say nothing here."""
    monkeypatch.setattr(claims, "pid_space", lambda: "another kernel")
    monkeypatch.setattr(socket, "gethostname", lambda: "another")


def test_a_name_is_claimed_once_and_held_by_one_claim() -> None:
    other = claims.claim("main")
    assert other is not None
    assert claims.claim("main") is None
    other.remove()
    assert [p.name for p in registry.runtime_root().iterdir()] == [".lock"]
    first = claims.claim("main")
    assert first is not None
    assert claims.holds("main", first.id)
    assert not claims.holds("main", "another")
    assert not claims.holds("other", first.id)
    first.let_go()  # as at the end of its process
    assert not claims.holds("main", first.id)


CLAIM = (
    "from jaxcluster.hosts.records import claims\n"
    "c = claims.claim('main'); print(bool(c), flush=True)"
)


def test_a_claim_whose_process_has_ended_is_taken_over() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CLAIM], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "True\n"
    (registry.folder("main") / "rank-0.log").write_text("its last words")
    assert claims.life("main") is Life.DEAD
    mine = claims.claim("main")
    assert mine is not None
    assert not (registry.folder("main") / "rank-0.log").exists()
    mine.remove()


def test_a_claim_of_another_process_that_lives_is_left_alone() -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", CLAIM + "; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"True\n"
    claims.tidy()
    assert claims.claim("main") is None
    with pytest.raises(ClusterExists, match=f"being started, by process {other.pid} on"):
        claim(wire.ClusterSpec("main", 2))
    spec, mine = claim(wire.ClusterSpec("main", 2, any_name=True))
    assert spec.name == "main-2"
    mine.remove()
    other.communicate(b"\n", timeout=30)


def test_whoever_holds_the_lock_keeps_it_alive_when_the_claimant_is_gone() -> None:
    """So does the fork server of a detached cluster."""
    subprocess.run([sys.executable, "-c", CLAIM], capture_output=True, check=True)
    registry.write(record("main"))
    lock = os.open(registry.folder("main") / "alive", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    assert claims.life("main") is Life.ALIVE
    claims.tidy()
    assert [r.name for r in live_records()] == ["main"]
    os.close(lock)
    assert live_records() == []
    claims.tidy()
    assert not registry.folder("main").exists()
    mine = claims.claim("main")
    assert mine is not None
    registry.write(record("main", owner="1:not-the-start-time-of-1"))
    assert claims.life("main") is Life.DEAD  # a cluster ends with its owner, whoever has the lock


def test_where_files_cannot_be_locked_nothing_starts_and_nothing_is_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    there = claims.claim("there")
    assert there is not None

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LaunchError, match="No locks available") as caught:
        claims.claim("main")
    assert caught.value.hint == CHOOSE
    assert claims.life("there") is Life.ALIVE
    claims.tidy()
    registry.hold("there")()
    assert [path.name for path in root.iterdir() if path.is_dir()] == ["there"]


def test_what_was_made_elsewhere_is_left_alone(elsewhere: None, root: Path) -> None:
    """In another pid namespace, or on another host that shares the folder."""
    subprocess.run([sys.executable, "-c", CLAIM], capture_output=True, check=True)
    registry.write(record("main", owner="12:345"))
    assert claims.life("main") is Life.UNKNOWN
    assert [r.name for r in live_records()] == ["main"]
    assert claims.claim("main") is None
    assert (root / "main" / "cluster.json").exists()


@pytest.mark.parametrize("space", [f"{pid_space().split()[0]} pid:[1]", "an earlier boot"])
def test_in_another_container_or_after_a_reboot_the_lock_tells(
    monkeypatch: pytest.MonkeyPatch, space: str
) -> None:
    mine = claims.claim("main")
    assert mine is not None
    registry.write(record("main", owner="12:345"))  # pids mean nothing there
    monkeypatch.setattr(claims, "pid_space", lambda: space)
    assert claims.life("main") is Life.ALIVE
    mine.let_go()
    assert claims.life("main") is Life.DEAD
    (registry.runtime_root() / f"{claims.DEAD}1").mkdir()  # as a killed process leaves it
    claims.tidy()
    assert [path.name for path in registry.runtime_root().iterdir()] == [".lock"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"id": 1}', "null"])
def test_a_folder_that_is_no_clusters_is_left_alone(root: Path, content: str) -> None:
    (root / "main").mkdir()
    (root / "main" / "alive").write_text(content)
    (root / "main" / "thesis.txt").write_text("dear")
    (root / "thesis.txt").write_text("dear too")
    assert live_records() == []
    assert claims.claim("main") is None
    with pytest.raises(ClusterExists, match="may not be a cluster's folder"):
        claim(wire.ClusterSpec("main", 2))
    assert sorted(p.name for p in (root / "main").iterdir()) == ["alive", "thesis.txt"]
    assert (root / "thesis.txt").exists()


def test_a_removal_touches_no_other_cluster_of_that_name(root: Path) -> None:
    first = claims.claim("main")
    assert first is not None
    old = record("main", claim=first.id)
    first.remove()
    second = claims.claim("main")
    assert second is not None
    claims.remove(old.name, old.claim)
    claims.remove(old.name, "")
    first.remove()
    assert (root / "main").is_dir()
    assert second.is_held
    second.remove()
    assert not second.is_held
    assert not (root / "main").exists()


def test_where_nothing_can_be_written_the_start_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    registry.runtime_root()
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(LaunchError) as caught:
        claims.claim("main")
    assert str(caught.value).startswith(f"Nothing can be started in {root}: No space left")
    assert "JAXCLUSTER_RUNTIME_DIR" in caught.value.hint


def test_a_process_that_was_stopped_with_the_lock_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "LOCK_S", 0.05)
    registry.runtime_root()
    lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(JaxClusterError, match=r"A process has held .* Is it stopped"):
        claims.life("main")
    os.close(lock)
    assert claims.life("main") is Life.DEAD
