"""The ssh launcher against OpenSSH's own client and server, on this machine's loopback.

Each test's sshd runs on a port of its own, with its own keys; agents are stand-ins that announce
themselves, answer on their socket, and end with their input.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from helpers import processes_with, until
from rig import launches
from rig.launches import MARK, ends_of, is_alive, refused, successor

from jaxcluster.errors import LaunchError
from jaxcluster.hosts.agent.transport import new_keys
from jaxcluster.hosts.fleet import Fleet
from jaxcluster.launchers.commands import TRIES, Launch
from jaxcluster.launchers.hosts import parse_hosts
from jaxcluster.launchers.ssh import SSH

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.skipif(SSHD is None, reason="there is no sshd: apt-get install openssh-server"),
    pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh"),
]
ME = pwd.getpwuid(os.getuid()).pw_name


@dataclass
class Site(launches.Site):
    """A folder with keys, an ssh config, and sshds that end with the test."""

    config: list[str] = field(default_factory=list)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def key(self, name: str) -> Path:
        path = self.path / name
        if not path.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        return path

    def sshd(self, *settings: str) -> int:
        """A running sshd's port."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port: int = probe.getsockname()[1]
        lines = (
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {self.key('hostkey')}\n"
            f"AuthorizedKeysFile {self.path}/authorized_keys\nStrictModes no\n"
            "PermitRootLogin yes\nUsePAM no\nPidFile none\nAcceptEnv LANG\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        )
        path = self.path / f"sshd-{port}.conf"
        path.write_text("\n".join([*settings, lines]))
        # Without the test's mark: its sessions are not what the launcher has started here.
        env = {k: v for k, v in os.environ.items() if k != MARK}
        argv = [str(SSHD), "-D", "-e", "-f", path]
        self.servers.append(subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL))

        def answers() -> bool:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 1) as s,
            ):
                return bool(s.recv(4))
            return False

        until(answers, "sshd answers", 10)
        return port

    def alias(self, name: str, port: int, *settings: str) -> None:
        """A host of the ssh config."""
        defaults = (
            f"HostName 127.0.0.1|Port {port}|User {ME}|IdentityFile {self.path}/id|"
            f"IdentitiesOnly yes|IdentityAgent none|UserKnownHostsFile {self.path}/known_hosts|"
            "GlobalKnownHostsFile /dev/null|HostKeyAlias jaxcluster-test"
        ).split("|")
        self.config += [f"Host {name}", *(f"  {line}" for line in (*settings, *defaults))]
        (self.path / "config").write_text("\n".join(self.config) + "\n")

    def trust(self, host_key: str = "hostkey") -> None:
        public = self.key(host_key).with_suffix(".pub").read_text().split()
        (self.path / "known_hosts").write_text(f"jaxcluster-test {public[0]} {public[1]}\n")

    def launcher(self, hosts: str, **options: Any) -> SSH:
        return SSH(parse_hosts(hosts), ssh_config=str(self.path / "config"), **options)

    def launched(self, launcher: SSH, python: str = "", **agent: Any) -> Launch:
        return self.launch(launcher, python or self.program(), self.path, **agent)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    if os.getuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    with launches.launching(monkeypatch) as plain:
        made = Site(plain.path, plain.launches)
        shutil.copy(made.key("id").with_suffix(".pub"), made.path / "authorized_keys")
        made.trust()
        try:
            yield made
            for launch in made.launches:
                launch.stop()
        finally:
            for server in made.servers:
                server.terminate()
                server.wait(10)


# ------------------------------------------------------------------------------- agents come up


def test_agents_come_up_in_the_order_given_and_are_reached_through_ssh_alone(site: Site) -> None:
    port = site.sshd()
    site.alias("h1 h2", port)
    launch = site.launched(site.launcher("h2:1,h1:2"))
    told: list[str] = []
    agents = launch.start(60, told.append)
    assert [agent.host for agent in agents] == [0, 1]
    assert launch.plan.hosts == ("h2", "h1")
    assert told[0] == "0 of 2 hosts" and told[-1] == "2 of 2 hosts"
    for agent in agents:
        assert f"--owner-key={launches.KEY}" in agent.facts["argv"]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(agent.via)
            client.sendall(b"hello")
            assert client.recv(100) == b"HELLO"
        assert oct(os.stat(agent.via).st_mode & 0o777) == "0o600"
    launch.stop()
    until(lambda: not any(is_alive(agent.facts["pid"]) for agent in agents), "agents ended", 10)
    assert not any(Path(agent.via).exists() for agent in agents)


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "ksh"])
def test_every_login_shell_hands_on_key_and_environment(site: Site, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    port = site.sshd(f'ForceCommand exec {shutil.which(shell)} -c "$SSH_ORIGINAL_COMMAND"')
    site.alias("h1", port)
    value = "--a='b' \"c\" $HOME !! \\ %s *"
    env = (("XLA_FLAGS", value), ("EMPTY", ""))
    (agent,) = site.launched(site.launcher("h1"), env=env).start(60)
    assert f"--owner-key={launches.KEY}" in agent.facts["argv"]
    assert agent.facts["env"]["XLA_FLAGS"] == value
    assert agent.facts["env"]["EMPTY"] == ""
    assert MARK not in agent.facts["env"]  # nothing of ours goes along


@pytest.mark.parametrize(
    "chatter", ["echo Welcome to h1", "printf 'no break: '", "printf '\\033[1m{\\\"motd\\\"\\r\\n'"]
)
def test_a_login_shell_may_print_what_it_likes(site: Site, chatter: str) -> None:
    port = site.sshd(f'ForceCommand {chatter}; exec sh -c "$SSH_ORIGINAL_COMMAND"')
    site.alias("h1", port)
    (agent,) = site.launched(site.launcher("h1")).start(60)
    assert agent.facts["argv"][:2] == ["-P", "-m"]


def test_through_a_jump_host(site: Site) -> None:
    port = site.sshd()
    site.alias("gate", port)
    site.alias("inside", port, "ProxyJump gate")
    launcher = site.launcher("inside:1")
    (agent,) = site.launched(launcher).start(60)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(agent.via)
        client.sendall(b"far")
        assert client.recv(100) == b"FAR"


def test_a_config_with_wishes_of_its_own_changes_nothing(site: Site) -> None:
    port = site.sshd()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        site.alias(
            "h1", port, "RemoteCommand echo mine", "RequestTTY force", "LogLevel QUIET",
            f"ControlPath {site.path}/mux", "ControlMaster auto", "ControlPersist 60",
            f"LocalForward {taken.getsockname()[1]} localhost:1", "ExitOnForwardFailure yes",
            "BatchMode no", "ForwardX11 yes", "PermitLocalCommand yes",
            f"LocalCommand touch {site.path}/local",
        )  # fmt: skip
        (agent,) = site.launched(site.launcher("h1")).start(60)
    assert agent.facts["argv"][:2] == ["-P", "-m"]
    assert not (site.path / "mux").exists() and not (site.path / "local").exists()


# ------------------------------------------------------------------- what is said of what fails


def test_what_keeps_a_login_from_a_host_is_told_in_ssh_s_words(site: Site) -> None:
    """Each with the host, the line of ssh's, and a login to try."""

    def told(**options: Any) -> str:
        found = refused(site.launched(site.launcher("h1", **options)))
        assert found.startswith("No agent on h1: ssh ended with code 255. It says: "), found
        assert f"Try: ssh -F {site.path}/config h1 true" in found
        return found

    with socket.socket() as held, socket.create_server(("127.0.0.1", 0)) as silent:
        held.bind(("127.0.0.1", 0))  # and does not listen
        site.alias("h1", held.getsockname()[1])
        assert "Connection refused" in told()
        site.config.clear()
        site.alias("h1", silent.getsockname()[1])
        assert "timed out" in told(ssh_option=("ConnectTimeout=1",))
    site.config.clear()
    site.alias("h1", site.sshd("PasswordAuthentication yes", "PubkeyAuthentication no"))
    said = told()
    assert "Permission denied (password" in said and "must not ask" in said
    site.config.clear()
    site.alias("h1", site.sshd())
    known = (site.path / "known_hosts").read_text()
    (site.path / "known_hosts").write_text("")
    assert "Host key verification failed" in told()
    assert (site.path / "known_hosts").read_text() == ""  # nor is it taken in
    site.trust("another")
    assert "ost key" in told()
    (site.path / "known_hosts").write_text(known)
    (site.path / "authorized_keys").write_text("")
    assert "Permission denied (publickey)" in told()


def test_a_jump_host_that_would_ask_for_a_password(site: Site) -> None:
    """BatchMode is not handed on to the ssh that ProxyJump starts."""
    site.alias("gate", site.sshd("PasswordAuthentication yes", "PubkeyAuthentication no"))
    site.alias("inside", site.sshd(), "ProxyJump gate")
    assert "Permission denied (password" in refused(site.launched(site.launcher("inside")))


def test_a_python_that_is_not_there_or_has_no_jaxcluster(site: Site) -> None:
    site.alias("h1", site.sshd())
    plain = site.path / "plain"
    plain.write_text("text")
    bare = site.program('#!/bin/sh\nexec {python} -I -S "$@"\n')
    old = site.program("#!/bin/sh\necho 'Unknown option: -P' >&2; exit 2\n", "old")
    for path in ("/no/such/python", "~/no such/python", "nosuchpython", str(plain), bare, old):
        told = refused(site.launched(site.launcher("h1"), python=path))
        assert told.startswith("No agent on h1: ssh ended with code "), told
        assert told.endswith(f"one with this jaxcluster: --python PATH (now {path})"), told


def test_a_login_shell_that_waits_is_told_with_what_it_has_printed(site: Site) -> None:
    site.alias("h1", site.sshd("ForceCommand echo 'Press any key'; exec cat"))
    told = refused(site.launched(site.launcher("h1")), timeout_s=8)
    said = "0 of 1 hosts were ready within 8 s. No agent on h1 yet: ssh still runs."
    assert told.startswith(said) and '"Press any key"' in told


@pytest.mark.parametrize("setting", ["AllowStreamLocalForwarding no", "DisableForwarding yes"])
def test_sockets_that_may_not_be_forwarded(
    site: Site, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.alias("h1", site.sshd(setting))
    launch = site.launched(site.launcher("h1"))
    (agent,) = launch.start(60)
    monkeypatch.setattr("jaxcluster.hosts.fleet.CONNECT_S", 3.0)
    facts = {**agent.facts, "key": new_keys().public}  # this test's agent has none
    fleet = Fleet(new_keys())
    try:
        with pytest.raises(LaunchError) as caught:
            fleet.add([("h1", replace(agent, facts=facts))], launch.explain)
    finally:
        fleet.close()
    assert caught.value.message.startswith("The agent on h1 can't be reached: ssh still runs")
    assert "open failed" in caught.value.message
    assert "AllowStreamLocalForwarding" in caught.value.hint and "--direct" in caught.value.hint


def test_one_bad_host_leaves_no_agent_on_the_others(site: Site) -> None:
    port = site.sshd()
    site.alias("h1", port)
    site.alias("h2", port)
    good = site.program(name="good")
    # The same path everywhere: h2's own shell has no such file.
    site.alias("h3", site.sshd('ForceCommand sh -c "sleep 1; exec /no/python"'))
    launch = site.launched(site.launcher("h1,h2,h3"), python=good)
    told = refused(launch)
    assert "h3" in told
    # processes_with in the fixture looks at what was started here; agents are told by their path.
    until(lambda: not _running(good), "agents have ended", 10)


def _running(path: str) -> list[str]:
    found = []
    for proc in Path("/proc").iterdir():
        if proc.name.isdecimal():
            with contextlib.suppress(OSError):
                if path.encode() in (proc / "cmdline").read_bytes().split(b"\0")[:3]:
                    found.append(proc.name)
    return found


# -------------------------------------------------------------------------- logins tried again


def test_a_login_that_was_dropped_is_tried_again_and_not_for_ever(site: Site) -> None:
    port, seen, closes = site.sshd(), site.path / "seen", site.path / "closes"
    closes.write_text("2")
    way = site.program(
        f"#!/bin/sh\necho x >>{seen}\n[ $(wc -l <{seen}) -gt $(cat {closes}) ] || exit 1\n"
        f"exec {SSHD} -i -f {site.path}/sshd-{port}.conf\n",
        "way",
    )
    site.alias("h1", port, f"ProxyCommand {way} 2>/dev/null")
    (agent,) = site.launched(site.launcher("h1")).start(60)
    assert agent.facts["pid"] and seen.read_text() == "x\n" * 3
    closes.write_text("100")
    told = refused(site.launched(site.launcher("h1")))
    assert told.startswith("No agent on h1: ssh ended with code 255. It says: ")
    assert seen.read_text() == "x\n" * (3 + TRIES)


# ------------------------------------------------------------------------------ agents that end


def test_an_ssh_that_was_killed_ends_its_agent_and_leaves_room_for_the_next(site: Site) -> None:
    site.alias("h1", site.sshd())
    launch = site.launched(site.launcher("h1"))
    ends = ends_of(launch)
    (agent,) = launch.start(60)
    mark = os.environ[MARK]
    (ssh,) = [pid for pid, line in processes_with(MARK, mark).items() if line.startswith("ssh ")]
    os.kill(ssh, 9)
    until(lambda: ends, "the end is told", 20)
    until(lambda: not is_alive(agent.facts["pid"]), "the agent ends with its input", 10)
    assert Path(agent.via).exists()  # it could not tidy up
    again = successor(launch, 0)
    assert again is not None and again.facts["pid"] != agent.facts["pid"]
