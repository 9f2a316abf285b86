"""An agent's folder: what is in it, what lies outside, and whose is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from jaxcluster.errors import JaxClusterError
from jaxcluster.hosts.agent import folder as folders
from jaxcluster.hosts.agent import report
from jaxcluster.hosts.agent.folder import Folder, Record
from jaxcluster.supervision.processes import is_alive, pid_space, process_token

GONE = "4194999:1"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """One that lives until it is ended."""
    made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield made
    made.kill()
    made.communicate()


def left(
    place: Path, memory: Path, token: str = GONE, fork_token: str = "", **more: str
) -> tuple[Folder, Record]:
    """A folder with a record."""
    made = folders.make(place, memory)
    record = Record("one/1", token, fork_token, pid_space(), str(made.memory))
    record = Record(**asdict(record) | more)
    made.write(record)
    return made, record


def test_both_folders_are_the_users_alone_and_go_together(place: Path, memory: Path) -> None:
    before = os.umask(0)
    made = folders.make(place, memory)
    os.umask(before)
    assert made.path != made.memory
    for path in (made.path, made.memory):
        assert os.stat(path).st_mode & 0o777 == 0o700
        (path / "x").write_text("")
    made.remove()
    assert list(place.iterdir()) == list(memory.iterdir()) == []


def test_a_place_that_is_full_or_can_t_be_written_is_told(
    place: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JaxClusterError, match=f"{place}/none on .* can't be written to"):
        folders.make(place / "none")
    monkeypatch.setattr(folders, "ROOM", 1 << 62)
    with pytest.raises(JaxClusterError, match=r"is full: \d+ KiB are free there"):
        folders.make(place, memory)
    assert list(place.iterdir()) == list(memory.iterdir()) == []


def test_only_paths_below_it_are_inside(place: Path, memory: Path, tmp_path: Path) -> None:
    made = folders.make(place, memory)
    assert made.inside("a/b") == made.path / "a/b"
    assert made.inside(f"{made.memory}/a") == made.memory / "a"
    (made.path / "link").symlink_to(tmp_path)
    for name in ("", ".", "..", "../x", "/etc/passwd", "link", "link/x", f"{made.path}x/y"):
        with pytest.raises(PermissionError):
            made.inside(name)


def test_folders_of_the_dead_are_removed_and_no_others(
    place: Path, memory: Path, process: subprocess.Popen[bytes]
) -> None:
    alive = process_token(process.pid)
    dead, _ = left(place, memory)
    kept = [
        left(place, memory, token=alive)[0],
        left(place, memory, fork_token=alive)[0],  # it is about to remove it itself
        left(place, memory, pid_space="another container")[0],
        folders.make(place, memory),  # no record yet
    ]
    for text in (
        "",
        "[]",
        "{}",
        '{"id": 1}',
        json.dumps(dict.fromkeys(asdict(left(place, memory, token=alive)[1]), 1)),
    ):
        odd = folders.make(place, memory)
        (odd.path / folders.RECORD).write_text(text)
        kept.append(odd)
    folders.sweep(place)
    assert not dead.path.exists()
    assert not dead.memory.exists()
    assert all(one.path.exists() and one.memory.exists() for one in kept)


def test_a_record_has_nothing_removed_that_is_no_agents(place: Path, memory: Path) -> None:
    victim = memory / "somebody's"
    victim.mkdir()
    dead, record = left(place, memory)
    dead.write(replace(record, memory=str(victim)))
    folders.sweep(place)
    assert not dead.path.exists() and victim.exists()


@pytest.mark.parametrize("is_agent", [True, False], ids=["an agent", "a fork server alone"])
def test_the_fence_ends_those_of_its_id_and_waits_for_their_end(
    place: Path, memory: Path, process: subprocess.Popen[bytes], is_agent: bool
) -> None:
    """A fork server has the ranks, and with them the GPUs."""
    alive = process_token(process.pid)
    token, fork_token = (alive, "") if is_agent else (GONE, alive)
    mine, _ = left(place, memory, token=token, fork_token=fork_token)
    other, _ = left(place, memory, id="one/2")
    nobodys, _ = left(place, memory, id="")
    assert folders.fence(place, "") == []  # no id is nobody's
    assert folders.fence(place, "one/1") == [token]
    assert not is_alive(alive)
    assert not mine.path.exists()
    assert other.path.exists() and nobodys.path.exists()
    assert folders.fence(place, "one/1") == []


def test_an_older_agent_that_can_t_be_seen_stops_the_new_one(place: Path, memory: Path) -> None:
    made, _ = left(place, memory, pid_space="another container")
    with pytest.raises(JaxClusterError, match=f"If it has: rm -r {made.path}"):
        folders.fence(place, "one/1")
    assert made.path.exists()


def test_a_login_sessions_folder_is_not_used(tmp_path: Path) -> None:
    """It is removed at the end of the user's last login, as when an ssh connection ends."""
    found = folders.root({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert tmp_path not in found.parents


# --------------------------------------------------------------------------- what a host says


@pytest.mark.parametrize(
    ("ways_out", "cards", "address"),
    [
        # A pod with IPv6 alone: its IPv4 address is of use to nobody else.
        ({"192.0.2.1": "169.254.172.2", "2001:db8::1": "2600:1f13::7"}, [], "2600:1f13::7"),
        ({"192.0.2.1": "10.0.0.2", "2001:db8::1": "2600:1f13::7"}, [], "10.0.0.2"),
        ({"192.0.2.1": "169.254.172.2"}, ["127.0.0.1", "169.254.172.2", "10.1.0.2"], "10.1.0.2"),
        ({"2001:db8::1": "fe80::1"}, ["169.254.9.9"], "fe80::1"),  # better than none
        ({}, ["127.0.0.1"], "127.0.0.1"),
    ],
)
def test_an_address_is_one_that_others_reach(
    ways_out: dict[str, str], cards: list[str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "address_towards", lambda target: ways_out.get(target, ""))
    monkeypatch.setattr(report, "_card_addresses", lambda: iter(cards))
    assert report.own_address({}) == address
