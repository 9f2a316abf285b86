"""Notebooks of other machines: who is let in by an agent, and how its hosts are come to."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcluster.agent import folder as folders
from jaxcluster.agent import guest_access
from jaxcluster.allocation import remote_attach
from jaxcluster.errors import UsageError
from jaxcluster.launchers.hosts import Host, parse_hosts
from jaxcluster.records import claims, registry, runtimefolder
from jaxcluster.supervision.processes import pid_space, process_token

KEY = "ab" * 32


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runtimefolder, "MAX_SOCKET_PATH", 1000)  # pytest's folders have long names
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", str(folder))
    return folder


def agent(place: Path, name: str, token: str = "", space: str = "") -> folders.Folder:
    """An agent's folder, with the record of a cluster beside it."""
    made = folders.make(place, place)
    me = token or process_token(os.getpid())
    made.write(folders.Record(name, me, "", space or pid_space(), str(made.memory)))
    path = made.path / guest_access.RECORD
    path.parent.mkdir()
    path.write_text(json.dumps({"name": name}))
    return made


# --------------------------------------------------------------------------- who is let in


def test_a_key_is_let_in_as_long_as_its_login_lasts(tmp_path: Path) -> None:
    assert not guest_access.is_guest(tmp_path, KEY)
    with guest_access.let_in(tmp_path, KEY):
        assert guest_access.is_guest(tmp_path, KEY)
        assert not guest_access.is_guest(tmp_path, "cd" * 32)
        assert stat.S_IMODE((tmp_path / guest_access.GUESTS).stat().st_mode) == 0o700
    assert not list((tmp_path / guest_access.GUESTS).iterdir())
    assert not guest_access.is_guest(tmp_path, KEY)


@pytest.mark.parametrize(
    "text",
    ["", "4194305:1", f"{os.getpid()}:1", "\0", "x" * 9999],
    ids=["empty", "nobody", "another of this pid", "no text", "long"],  # alike in each process
)
def test_a_key_whose_login_has_ended_is_not_let_in(tmp_path: Path, text: str) -> None:
    with guest_access.let_in(tmp_path, KEY):
        (tmp_path / guest_access.GUESTS / KEY).write_text(text)
        assert not guest_access.is_guest(tmp_path, KEY)


def test_the_clusters_of_agents_that_live_here_are_listed(tmp_path: Path) -> None:
    first, second = agent(tmp_path, "a"), agent(tmp_path, "b")
    agent(tmp_path, "dead", token="4194305:1")
    agent(tmp_path, "far", space="another kernel's")
    (agent(tmp_path, "half").path / guest_access.RECORD).write_text('{"name": "ha')
    assert sorted(guest_access.records(tmp_path)) == sorted(
        [(str(first.path), {"name": "a"}), (str(second.path), {"name": "b"})]
    )


def run(*words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-P", "-m", "jaxcluster.agent.guest_access", *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "umask": 0o022}
    return subprocess.Popen(argv, **pipes)  # type: ignore[call-overload, no-any-return]


def test_a_login_lets_its_key_in_until_its_input_ends(root: Path) -> None:
    made = agent(root, "main")
    with run("--agent", str(made.path), "--key", KEY) as login:
        assert login.stdin is not None and login.stdout is not None
        assert json.loads(login.stdout.readline())["jaxcluster-agent"] == 1
        assert guest_access.is_guest(made.path, KEY)
        assert stat.S_IMODE((made.path / guest_access.GUESTS / KEY).stat().st_mode) == 0o600
        login.stdin.close()
        assert login.wait(30) == 0
    assert list((made.path / guest_access.GUESTS).iterdir()) == []


def test_a_login_that_is_ended_takes_its_key_with_it(root: Path) -> None:
    made = agent(root, "main")
    with run("--agent", str(made.path), "--key", KEY) as login:
        assert login.stdout is not None
        login.stdout.readline()
        login.terminate()
        assert login.wait(30) == 0
    assert list((made.path / guest_access.GUESTS).iterdir()) == []


@pytest.mark.parametrize("key", ["", "../" * 8 + "tmp/x", "../agent.json", KEY.upper(), KEY[:-1]])
def test_what_is_no_key_is_no_name_of_a_file(root: Path, key: str) -> None:
    made = agent(root, "main")
    record = (made.path / folders.RECORD).read_text()
    with run("--agent", str(made.path), f"--key={key}") as login:
        assert login.wait(30) == 2
    assert (made.path / folders.RECORD).read_text() == record
    assert not (made.path / guest_access.GUESTS).exists()


def test_a_login_to_an_agent_that_was_killed_says_so_first(root: Path) -> None:
    made = agent(root, "main", token="4194305:1")
    with run("--agent", str(made.path), "--key", KEY) as login:
        assert login.stdout is not None
        assert "jaxcluster-agent-ended" in json.loads(login.stdout.readline())
        assert login.wait(30) == 1


def test_a_login_tells_of_its_agents_end(root: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        made = agent(root, "main", token=process_token(process.pid))
        with run("--agent", str(made.path), "--key", KEY) as login:
            assert login.stdout is not None
            login.stdout.readline()
            process.kill()
            process.wait()
            assert "jaxcluster-agent-ended" in json.loads(login.stdout.readline())
            assert login.wait(30) == 1


def test_a_login_to_an_agent_that_is_not_there_says_so(root: Path) -> None:
    for other in (root, root / ".agent-gone", Path("/tmp")):
        with run("--agent", str(other), "--key", KEY) as login:
            assert login.stdout is not None
            assert "jaxcluster-agent-ended" in json.loads(login.stdout.readline())
            assert login.wait(30) == 1


def test_what_runs_is_printed_for_whoever_asks(root: Path) -> None:
    made = agent(root, "main")
    with run("--list") as login:
        assert login.stdout is not None
        assert json.loads(login.stdout.read())[guest_access.LINE] == [
            [str(made.path), {"name": "main"}]
        ]


# --------------------------------------------------------------------------- how hosts are come to


@pytest.mark.parametrize(
    ("typed", "number", "found"),
    [
        ("h1", 0, "h1,h2,h3"),
        ("h2", 1, "h1,h2,h3"),
        ("me@h2", 1, "me@h1,me@h2,me@h3"),
        ("10.0.0.2", 1, "h1,10.0.0.2,h3"),
        ("h3,you@h1", 2, "you@h1,h2,h3"),
        ("a,b,c", 2, "a,b,c"),
    ],
)
def test_hosts_that_were_not_named_are_called_as_the_owner_calls_them(
    typed: str, number: int, found: str
) -> None:
    hosts = remote_attach.hosts_of(parse_hosts(typed), ["h1", "h2", "h3"], number)
    assert hosts == parse_hosts(found)


def test_a_host_of_no_rank_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        remote_attach.hosts_of(parse_hosts("h1,other"), ["h1", "h2", "h3"], 0)
    assert str(caught.value) == (
        "other is not a host of this cluster. Its hosts are h1, h2, h3.\n"
        "Name one of them, or all in that order: --hosts h1,h2,h3"
    )


def test_ssh_leads_to_sockets_and_to_ports() -> None:
    assert remote_attach.endpoint_for_ssh("ipc:///tmp/a.sock") == "/tmp/a.sock"
    assert remote_attach.endpoint_for_ssh("tcp://10.0.0.2:4711") == "10.0.0.2:4711"
    assert remote_attach.endpoint_for_ssh("tcp://[fe80::1]:4711") == "[fe80::1]:4711"


def test_a_way_needs_a_host() -> None:
    with pytest.raises(UsageError, match="No host of the cluster is named"):
        remote_attach.logins_of({"user": "me"})
    with pytest.raises(UsageError, match="does not know --nodes"):
        remote_attach.logins_of({"hosts": "h1", "nodes": "2"})
    way = remote_attach.logins_of({"hosts": "me@h1", "port": "2222"})
    assert way.ssh.hosts == (Host("h1", user="me"),)
    assert way.typed == "--hosts me@h1 --port 2222"


def test_a_private_folder_is_known_for_what_it_is(root: Path) -> None:
    with claims.private_folder() as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        claims.tidy()
        assert path.is_dir()
        assert registry.records() == []
        (path / "ssh-0.sock").touch()
    assert not path.exists()


def test_a_private_folder_of_a_process_that_was_killed_is_removed(root: Path) -> None:
    code = (
        "import os, signal\nfrom jaxcluster.records import claims\n"
        "with claims.private_folder() as path:\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(list(root.glob(".start-*"))) == 1
    claims.tidy()
    assert list(root.glob(".start-*")) == []
