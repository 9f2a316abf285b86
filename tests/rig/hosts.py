"""Hosts that are namespaces of this machine, on a switch of their own.

A rig is a namespace of processes with a network of its own, in which a bridge is the switch. A host
is a namespace of processes, network, host name, mounts and IPC inside it. All of it lives in
processes and nowhere else: no name in /run/netns, no interface, no mount and no address of this
machine's. So the rig's end is the end of one process, two rigs never meet, and since that process
watches the session's pidfd, a session that is killed leaves nothing.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from rig.environment import make_environment
from rig.leftovers import Seen, look

CHECKOUT = Path(__file__).parents[2]
FOLDERS = Path("/run")  # of rigs: a short path, for Unix sockets
PREFIX = "jcrig-"
NETWORK = "10.76.0."  # nothing outside the rig can reach it, nor is reached from it
DEADLINE_S = 60.0  # as for anything in these tests: the machine may be busy
OWN = ("/tmp", "/var/tmp", "/run", "/home")  # each host has its own; and root's home
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Missing(Exception):
    """What a rig needs is not here; the message says what, and how to get it."""


def need(*programs: str, package: str) -> None:
    """Raise Missing where one of the programs is not in PATH (or where Debian puts daemons)."""
    for program in programs:
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:{PATH}") is None:
            raise Missing(f"there is no {program}: apt-get install {package}")


class Host:
    """One host of a rig. Its files, processes and sockets can be looked at from outside."""

    def __init__(self, rig: Rig, name: str, number: int) -> None:
        self.name = name
        self.address, self.address6 = f"{NETWORK}{10 + number}", f"fd76::{10 + number}"
        self.rig = rig
        self.home = rig.home
        self.python = rig.python
        self.environ = {"PATH": PATH, "HOME": rig.home, "USER": "root", "LOGNAME": "root"}
        self.environ |= {"LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        self.pid = 0  # of its first process, as this machine counts
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.not_left_over = list(rig.shared_inside)  # beginnings of paths

    def __repr__(self) -> str:
        return f"<host {self.name}>"

    # --------------------------------------------------------------------------------- commands

    def argv(
        self, *command: str | Path, env: Mapping[str, str] | None = None, cwd: str | Path = ""
    ) -> list[str]:
        """What runs a command there, in an environment of the host's own, from ``cwd`` (home).

        The command leads a session of its own. When the process that carries it on this machine
        ends, it is killed; what it has started by then is not.
        """
        variables = [f"{name}={value}" for name, value in (self.environ | dict(env or {})).items()]
        return [
            *("nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", "--ipc", "--pid"),
            *("--", "setpriv", "--pdeathsig", "KILL", "setsid"),
            *("env", "-i", f"--chdir={cwd or self.home}", *variables, *map(str, command)),
        ]

    def popen(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "",
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Start a command there; ``kill()`` kills it."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(self.argv(*command, env=env, cwd=cwd), **options)

    def run(
        self,
        *command: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = "",
        input: str | None = None,
        check: bool = True,
        timeout_s: float = DEADLINE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end; with ``check`` another status than 0 is a failure."""
        done = subprocess.run(
            self.argv(*command, env=env, cwd=cwd),
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            **({"stdin": subprocess.DEVNULL} if input is None else {"input": input}),
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"{shlex.join(map(str, command))} on {self.name}: status {done.returncode}\n"
                f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        return done

    def start_daemon(self, name: str, *command: str | Path, env: Mapping[str, str] = {}) -> Path:
        """Start what stays until the rig's end, and is never left over. Returns its log."""
        log = self.rig.folder / "log" / f"{self.name}.{name}.log"
        with open(log, "ab") as written:
            # It is no process of the folders that the tests have in their environment.
            self.daemons[name] = subprocess.Popen(
                self.argv(*command, env=env),
                env={"PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
            )
        return log

    def stop_daemon(self, name: str) -> None:
        process = self.daemons.pop(name)
        process.kill()
        process.wait(DEADLINE_S)

    # -------------------------------------------------------------------------------- processes

    def processes(self) -> dict[int, str]:
        """All living processes there but the first one, by their pid there, with command lines."""
        return {pid: line for (pid, _), line in self.look().processes.items()}

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process by its pid there."""
        self.run("kill", f"-{number}", str(pid))

    # ------------------------------------------------------------------------------------ files

    def path(self, there: str | Path) -> Path:
        """A path of this machine's that leads to a file there; ``~`` is root's home."""
        inside = re.sub(r"^~", self.home, str(there))
        return Path(f"/proc/{self.pid}/root") / inside.lstrip("/")

    def write(self, there: str | Path, text: str, mode: int = 0o644) -> Path:
        path = self.path(there)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    # --------------------------------------------------------------------------------- leftovers

    def look(self) -> Seen:
        """What there is now: processes, files, listening sockets."""
        return look(self)

    def leftovers(self, before: Seen) -> list[str]:
        """What there is beyond ``before``, a line for each thing. Empty: nothing is left."""
        return self.look().beyond(before)

    # ----------------------------------------------------------------------------------- network

    def ip(self, *words: str) -> None:
        """Run this machine's ``ip`` in the host's network."""
        _call("nsenter", f"--target={self.pid}", "--net", "--", "ip", *words)

    # --------------------------------------------------------------------------------- accidents

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Meanwhile its link to the switch is cut: what is sent is lost, and nobody is told."""
        link = ("ip", "link", "set", f"v-{self.name}")
        self.rig.on_switch(*link, "down")
        try:
            yield
        finally:
            self.rig.on_switch(*link, "up")


class Rig:
    """Hosts h0, h1, ... on one switch; h0 is the notebook's. Ends with ``close`` or the session.

    Attributes:
        hosts: by name.
        python: a Python for all hosts that has this checkout's jaxcluster, whatever variables say.
        shared: the same folder on this machine and, writable, on all hosts.
        folder: the rig's, on this machine's disk; the daemons' logs are in ``folder/log``.
        ssh_config: h0's; ssh reads it of its own accord.
    """

    def __init__(self, names: Iterable[str] = ("h0", "h1", "h2")) -> None:
        if os.geteuid() != 0:
            raise Missing("only root can make namespaces")
        need("ip", package="iproute2")
        need("nsenter", "unshare", "setpriv", "setsid", package="util-linux")
        sweep()
        self.home = pwd.getpwuid(0).pw_dir
        self.ssh_config = f"{self.home}/.ssh/config"  # on h0, once start_ssh has made it
        self.hosts: dict[str, Host] = {}
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=FOLDERS))
        self.shared = self.folder / "shared"
        self._processes: list[subprocess.Popen[bytes]] = []  # the rig's own first, then the hosts'
        try:
            self.folder.chmod(0o755)
            for name in ("log", "shared", "env", "hosts"):
                (self.folder / name).mkdir()
            self.python = make_environment(self.folder / "env" / "default")
            self.shared_inside = [str(path) for path in self._shared_paths()]
            self._start()
            for number, name in enumerate(names):
                self._add(Host(self, name, number))
            self._tell_names({name: host.address for name, host in self.hosts.items()})
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of every host, and remove the folder. Idempotent."""
        for process in self._processes[:1]:
            with contextlib.suppress(psutil.Error):  # it has ended already
                for child in psutil.Process(process.pid).children():
                    child.kill()
        daemons = [daemon for host in self.hosts.values() for daemon in host.daemons.values()]
        for process in (*self._processes, *daemons):
            process.wait(DEADLINE_S)
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def on_switch(self, *command: str) -> None:
        """Run a command in the network in which the bridge is."""
        _call("nsenter", f"--target={self.pid}", "--net", "--", *command)

    @contextlib.contextmanager
    def apart(self, *names: str) -> Iterator[None]:
        """Meanwhile these hosts do not reach each other, but all others: as behind a firewall."""

        def isolate(switch: str) -> None:
            for name in names:
                link = ("ip", "link", "set", f"v-{name}")
                self.on_switch(*link, "type", "bridge_slave", "isolated", switch)

        isolate("on")
        try:
            yield
        finally:
            isolate("off")

    @contextlib.contextmanager
    def with_ipv6_alone(self) -> Iterator[None]:
        """Meanwhile hosts have addresses of IPv6, to which their names lead, and none of IPv4."""
        for host in self.hosts.values():
            host.ip("-6", "address", "add", f"{host.address6}/64", "dev", "eth0", "nodad")
            host.ip("address", "del", f"{host.address}/24", "dev", "eth0")
        self._tell_names({name: host.address6 for name, host in self.hosts.items()})
        try:
            yield
        finally:
            for host in self.hosts.values():
                host.ip("address", "add", f"{host.address}/24", "dev", "eth0")
                host.ip("-6", "address", "del", f"{host.address6}/64", "dev", "eth0")
            self._tell_names({name: host.address for name, host in self.hosts.items()})

    # ----------------------------------------------------------------------------------- making

    def _start(self) -> None:
        """The namespace that holds all hosts, and the switch."""
        watched = os.pidfd_open(os.getpid())
        try:
            process, self.pid = _spawn(
                *("unshare", "--pid", "--fork", "--net", "--mount", "--ipc", "--mount-proc"),
                *("--", *INIT, str(watched), str(self.folder)),
                pass_fds=(watched,),
            )
        finally:
            os.close(watched)
        self._processes.append(process)
        self.on_switch("ip", "link", "set", "lo", "up")
        self.on_switch("ip", "link", "add", "br0", "type", "bridge")
        self.on_switch("ip", "link", "set", "br0", "up")

    def _add(self, host: Host) -> None:
        script = self.folder / "hosts" / f"{host.name}.sh"
        lines = ["set -e", *self._setting_up(host), "exec " + shlex.join(INIT)]
        script.write_text("\n".join(lines) + "\n")
        process, host.pid = _spawn(
            *("nsenter", f"--target={self.pid}", "--pid", "--"),
            *("unshare", "--pid", "--fork", "--net", "--uts", "--mount", "--ipc", "--mount-proc"),
            *("--", "sh", str(script)),
        )
        self._processes.append(process)
        self.hosts[host.name] = host
        link = f"v-{host.name}"
        end = ("peer", "name", "eth0", "netns", str(host.pid))
        self.on_switch("ip", "link", "add", link, "type", "veth", *end)
        self.on_switch("ip", "link", "set", link, "master", "br0", "up")
        host.ip("address", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            host.ip("link", "set", device, "up")

    def _setting_up(self, host: Host) -> Iterator[str]:
        """Shell commands that give a host what is its own.

        A folder is laid out beside its place and then moved there, because once it is there, what
        it hides can't be bound into it.
        """
        new = self.folder / "hosts" / host.name
        new.mkdir()
        yield f"hostname {host.name}"
        for own in (*OWN, self.home):
            yield f"mount -n -t tmpfs -o mode=755 tmpfs {new}"
            if own.endswith("tmp"):
                yield f"chmod 1777 {new}"
            for path in self._shared_paths():
                if path.is_relative_to(own):
                    inside = shlex.quote(f"{new}/{path.relative_to(own)}")
                    yield f"mkdir -p {inside}; mount -n --bind {shlex.quote(str(path))} {inside}"
                    if self._read_only(host, path):
                        yield f"mount -n -o remount,bind,ro {inside}"
            yield f"mount -n --move {new} {own}"
        for path in self._shared_paths():
            if not path.is_relative_to(self.folder) and self._read_only(host, path):
                place = shlex.quote(str(path))
                if not any(path.is_relative_to(own) for own in (*OWN, self.home)):
                    yield f"mount -n --bind {place} {place}; mount -n -o remount,bind,ro {place}"
        env = self.folder / "env"
        yield f"mount -n --bind {env} {env}; mount -n -o remount,bind,ro {env}"
        yield "mount -n -t tmpfs -o mode=1777 tmpfs /dev/shm"
        yield f"mkdir -p {new}; mount -n -t tmpfs -o mode=755 tmpfs {new}; cp -a /etc/. {new}/"
        yield f"mount -n --move {new} /etc"
        yield f"echo {host.name} > /etc/hostname; rm -f /etc/resolv.conf; : > /etc/resolv.conf"
        yield f"cat /proc/sys/kernel/random/uuid > {BOOT}"
        yield f"mount -n --bind {BOOT} /proc/sys/kernel/random/boot_id"

    def _shared_paths(self) -> list[Path]:
        """Folders of this machine that are on each host: the rig's, the checkout, the Pythons."""
        wanted = {Path(sys.prefix), Path(sys.base_prefix), CHECKOUT}
        wanted |= {Path(sys.executable).resolve().parents[1], self.folder}
        for config in Path(sys.prefix).parent.glob(".venv-*/pyvenv.cfg"):  # of other versions
            wanted |= {config.parent, *(Path(h) for h in HOME_OF.findall(config.read_text()))}
        wanted = {path for path in wanted if path.is_dir() and path not in WHOLE}
        return sorted(p for p in wanted if not any(other in p.parents for other in wanted))

    def _read_only(self, host: Host, path: Path) -> bool:
        return path != self.folder and not (path == CHECKOUT and host.name == "h0")

    def _tell_names(self, addresses: Mapping[str, str]) -> None:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        lines += [f"{address} {name}" for name, address in addresses.items()]
        for host in self.hosts.values():
            host.write("/etc/hosts", "\n".join(lines) + "\n")


HOME_OF = re.compile(r"^home *= *(.+)/bin$", re.MULTILINE)  # in pyvenv.cfg
WHOLE = {Path("/"), Path("/usr"), Path("/usr/local")}  # hosts see them as they are
BOOT = "/etc/rig-boot-id"
# Python isolated from variables and from the environment's packages: it starts in 20 ms.
INIT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py")))


def sweep() -> None:
    """Remove the folders of sessions that are gone, should their rigs not have done so."""
    for folder in FOLDERS.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _spawn(*command: str, pass_fds: tuple[int, ...] = ()) -> tuple[subprocess.Popen[bytes], int]:
    """Start a namespace, and wait until its first process is ready. Returns that one's pid too."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=pass_fds,
        start_new_session=True,  # Ctrl-C is for the session
    )
    assert process.stdout is not None
    said, end = b"", time.monotonic() + DEADLINE_S
    with process.stdout as output:
        while not said.endswith(b"ready\n"):
            ready, _, _ = select.select([output], [], [], max(0, end - time.monotonic()))
            if not ready or not (more := os.read(output.fileno(), 4096)):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()
                process.wait(DEADLINE_S)
                why = said.decode(errors="replace").strip() or "it does not start"
                raise Missing(f"namespaces can't be made here: {why}")
            said += more
    first = psutil.Process(process.pid).children(recursive=True)[-1]
    return process, first.pid


def _call(*command: str) -> None:
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": DEADLINE_S}
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, **options)
    except subprocess.CalledProcessError as error:
        raise Missing(f"{shlex.join(command)}: {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired as error:
        raise Missing(str(error)) from None
