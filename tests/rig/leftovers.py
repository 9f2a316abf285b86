"""What is on a host: processes, files, sockets; and what is left beyond before."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers import GONE_S, until

if TYPE_CHECKING:
    from rig.hosts import Host, Rig

FOLDERS = ("/tmp", "/dev/shm", "/run", "/var/tmp", "/home")  # and root's home
# What IPython and matplotlib make in any home, and is its user's; files below pid, log and security
# are not.
USERS_OWN = re.compile(
    r"/\.config(/matplotlib)?|/\.cache(/matplotlib(/\S*)?)?|/\.ipython(/(extensions|nbextensions|profile_\w+(/(db|log|pid|security|static|startup"
    r"|startup/README|history\.sqlite\S*))?)?)?$"
)
# A user's folder of clusters stays, empty.
CLUSTERS = re.compile(r"(/var)?/tmp/jaxcluster-\d+(/\.lock)?$")
LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp


@dataclass(frozen=True)
class Seen:
    """What there was on a host at one moment.

    Attributes:
        processes: command lines by (pid there, start time); not the first one, nor zombies.
        things: files, listening ports and bound Unix sockets, as text.
    """

    processes: dict[tuple[int, int], str]
    things: frozenset[str]

    def beyond(self, before: Seen) -> list[str]:
        """What is new since ``before``, a line for each thing."""
        new = [
            f"process {pid}: {line}"
            for (pid, started), line in sorted(self.processes.items())
            if (pid, started) not in before.processes
        ]
        return new + sorted(self.things - before.things)


@contextlib.contextmanager
def leaving_nothing(rig: Rig, deadline_s: float = GONE_S) -> Iterator[None]:
    """What is done meanwhile leaves nothing on any host, nor in the folder that all share.

    Raises:
        AssertionError: something is there after ``deadline_s``; its processes have been killed.
    """
    before = {name: host.look() for name, host in rig.hosts.items()}
    shared = {*rig.shared.rglob("*"), rig.shared / f"jaxcluster-{os.getuid()}"}  # that one stays
    yield

    def left() -> list[str]:
        found = [f"shared: {path}" for path in sorted(set(rig.shared.rglob("*")) - shared)]
        for name, host in rig.hosts.items():
            found += [f"{name}: {line}" for line in host.leftovers(before[name])]
        return found

    with contextlib.suppress(AssertionError):
        until(lambda: not left(), "end of all that was begun", deadline_s)
    if found := left():
        for name, host in rig.hosts.items():  # that the next test may have the hosts to itself
            for pid, _ in host.look().processes.keys() - before[name].processes.keys():
                host.run("kill", "-KILL", str(pid), check=False)
        raise AssertionError("left over:\n" + "\n".join(found))


def look(host: Host) -> Seen:
    processes = _processes(Path(f"/proc/{host.pid}/root/proc"))
    for name, daemon in list(host.daemons.items()):
        if daemon.poll() is not None:
            raise AssertionError(f"{name} has ended on {host.name}, status {daemon.returncode}")
    things = {
        *_files(host, [*FOLDERS, host.home]),
        *_ports(Path(f"/proc/{host.pid}/net")),
        *_unix_sockets(host, Path(f"/proc/{host.pid}/net/unix")),
    }
    return Seen(processes, frozenset(things))


def _processes(proc: Path) -> dict[tuple[int, int], str]:
    """Of a host's own /proc: none can hide from it, whatever session it is in."""
    found = {}
    for entry in proc.iterdir():
        if not entry.name.isdecimal() or entry.name == "1":
            continue
        try:
            stat = (entry / "stat").read_text()
            state, *fields = stat.rpartition(")")[2].split()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # gone in the meantime
            continue
        if state not in "ZX":
            name = stat.partition("(")[2].rpartition(")")[0]
            found[int(entry.name), int(fields[18])] = line.strip() or f"[{name}]"
    return found


def _files(host: Host, folders: list[str]) -> set[str]:
    found = set()
    for folder in folders:
        for path, names, files in os.walk(host.path(folder)):
            there = "/" + os.path.relpath(path, host.path("/"))
            inside = [f"{there}/{name}" for name in names]
            names[:] = [n for n, p in zip(names, inside, strict=True) if not _is_own(host, p)]
            inside += [f"{there}/{name}" for name in files]
            left = (each for each in inside if not (CLUSTERS.match(each) or _is_own(host, each)))
            found |= {f"file {each}" for each in left}
    return found


def _is_own(host: Host, path: str) -> bool:
    """Whether a path is the rig's own: a folder that hosts share, or a daemon's state."""
    return (
        any(path.startswith(own) for own in host.not_left_over)
        or any(shared.startswith(f"{path}/") for shared in host.rig.shared_inside)
        or USERS_OWN.fullmatch(path.removeprefix(host.home)) is not None
    )


def _ports(net: Path) -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (net / name).read_text().splitlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        for fields in map(str.split, lines):
            if fields[3] == LISTENS:
                found.add(f"listening port {int(fields[1].rpartition(':')[2], 16)}")
    return found


def _unix_sockets(host: Host, table: Path) -> set[str]:
    found = set()
    for line in table.read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and not _is_own(host, fields[7]):
            found.add(f"Unix socket {fields[7]}")
    return found
