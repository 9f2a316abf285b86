"""Clusters of hosts that another machine has started: found, and come to, over the user's own ssh.

    logins = logins_of({"hosts": "h1", "user": "me"})
    found = find(logins, "main")             a login to the host that was named: what runs there
    remote = RemoteAttach(logins, found)             a login to each host of the cluster ...
    fleet = remote.start(timeout_s=60)     ... and through it the connection to its agent

The visitor makes a pair of keys of its own. On each host the login puts the public one into the
agent's private folder, which only the agent's user can enter, and the agent lets it in as long as
that login lasts (``agent.guest_access``). No secret goes anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.agent import guest_access
from jaxcluster.agent.transport import new_keys
from jaxcluster.allocation.fleet import Fleet
from jaxcluster.allocation.local import check_files
from jaxcluster.errors import LaunchError, NoCluster, UsageError, VersionMismatch
from jaxcluster.launchers.base import Command, End, LaunchPlan, Tunnel
from jaxcluster.launchers.commands import Launch, StartedAgent
from jaxcluster.launchers.factory import launcher_of
from jaxcluster.launchers.hosts import Host
from jaxcluster.launchers.quoting import join, quote_path
from jaxcluster.launchers.reasons import run_briefly
from jaxcluster.launchers.ssh import SSH
from jaxcluster.options import written
from jaxcluster.records import claims
from jaxcluster.records.registry import ClusterRecord, HostRecord

LIST_S = 60.0
EXAMPLE = "%jaxcluster attach main --hosts h1"


@dataclass(frozen=True)
class Logins:
    """How hosts are logged in to: what was typed.

    Attributes:
      ssh: with the hosts that were named.
      python: the hosts' Python.
      typed: the words, to be typed again.
    """

    ssh: SSH
    python: str
    typed: str


def logins_of(typed: Mapping[str, str | list[str]]) -> Logins:
    """How to come to hosts, from the options of ``--launcher ssh``.

    Raises:
      UsageError: one of them is not possible.
    """
    if not typed.get("hosts") and not typed.get("hostfile"):
        raise UsageError("No host of the cluster is named.", f"For example: {EXAMPLE}")
    ssh, python = launcher_of("ssh", dict(typed))
    assert isinstance(ssh, SSH)
    return Logins(ssh, python or sys.executable, written.line(typed))


# --------------------------------------------------------------------------- what runs there


@dataclass(frozen=True)
class Found:
    """A cluster, and which of its hosts the one is that said so."""

    record: ClusterRecord
    number: int


def find(logins: Logins, name: str | None) -> Found:
    """The cluster that has an agent on the host that was named first.

    Args:
      name: the cluster's, also ``NAME@HOST`` with the host that it was started on; None takes the
        only one that there is.

    Raises:
      NoCluster: there is none.
      UsageError: there are several.
      LaunchError: the host can't be logged in to.
    """
    first = logins.ssh.hosts[0]
    there = look(dataclasses.replace(logins, ssh=dataclasses.replace(logins.ssh, hosts=(first,))))
    wanted, _, started_on = (name or "").partition("@")
    fit = [
        found
        for found in there
        if wanted in ("", found.record.name) and started_on in ("", found.record.hostname)
    ]
    if len(fit) == 1:
        return fit[0]
    if fit:
        raise UsageError(
            f"Several clusters have an agent on {first.name}: {_names(fit)}.",
            f"%jaxcluster attach {_name(fit[0])} {logins.typed}",
        )
    what = f"There is no cluster {name!r} on {first.name}"
    if name is None:
        what = f"No cluster of yours has an agent on {first.name}"
    raise NoCluster(
        f"{what} (there: {_names(there)})." if there else f"{what}.",
        f"%jaxcluster attach {_name(there[0])} {logins.typed}"
        if there
        else "Only clusters started with --launcher can be attached to from another machine.",
    )


def _name(found: Found) -> str:
    return f"{found.record.name}@{found.record.hostname}"


def _names(found: Sequence[Found]) -> str:
    return ", ".join(map(_name, found))


def look(logins: Logins) -> list[Found]:
    """This user's clusters that have an agent on one of the hosts that were named, oldest first.

    Raises:
      LaunchError: a host can't be logged in to.
      VersionMismatch: what runs there is of another version of jaxcluster.
    """
    ssh = logins.ssh.prepared(os.environ)
    found: dict[str, Found] = {}
    for number, host in enumerate(ssh.hosts):
        for folder, body in _listed(ssh, number, host, logins.python):
            record = _parse(body, host.name)
            mine = [k for k, each in enumerate(record.hosts) if each.folder == folder]
            if mine:
                found.setdefault(record.claim, Found(record, mine[0]))
    return sorted(found.values(), key=lambda found: found.record.created_ns)


def _parse(body: object, host: str) -> ClusterRecord:
    try:
        return wire.parse_strictly(ClusterRecord, body)
    except (ValueError, RecursionError):
        raise VersionMismatch(
            f"A cluster on {host} was started by another version of jaxcluster.",
            "Attach with the version that started it.",
        ) from None


def _listed(ssh: SSH, number: int, host: Host, python: str) -> list[tuple[str, Any]]:
    """(the agent's folder, the record beside it) of each cluster on a host."""
    command = ssh.login(number, host, _line(python, ["--list"]), python)
    try:
        done = run_briefly(command.argv, LIST_S, {**os.environ, **dict(command.env)})
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"{host.name} did not list its clusters within {LIST_S:g} s.",
            f"Does its login shell wait for something? Try: ssh {host.name} true",
        ) from None
    lines = done.stdout.splitlines()
    for line in lines:  # a login shell may have printed before it, without a line break
        if (at := line.find(f'{{"{guest_access.LINE}"')) >= 0:
            with contextlib.suppress(ValueError, TypeError):
                return [
                    (str(folder), body) for folder, body in json.loads(line[at:])[guest_access.LINE]
                ]
    end = End(command, done.returncode, tuple(done.stderr.splitlines()), tuple(lines))
    reason = ssh.explain(end, [host.name])
    raise LaunchError(reason.message, reason.hint)


def _line(python: str, words: Sequence[str]) -> str:
    """The line for a host's login shell, whichever that is."""
    return (
        f"exec {quote_path(python)} {join(['-P', '-m', 'jaxcluster.agent.guest_access', *words])}"
    )


# --------------------------------------------------------------------------- the way to the agents


class RemoteAttach:
    """The logins to a cluster's hosts, for as long as this process is connected to it.

    Args:
      logins: as it was typed; hosts that were not named have the names that the owner gave them.
      found: the cluster.
    """

    def __init__(self, logins: Logins, found: Found) -> None:
        self.record = found.record
        self._python = logins.python
        names = [host.name for host in found.record.hosts]
        self._hosts = hosts_of(logins.ssh.hosts, names, found.number)
        self._ssh = dataclasses.replace(logins.ssh, hosts=self._hosts).prepared(os.environ)
        self._open = contextlib.ExitStack()

    def start(self, timeout_s: float) -> Fleet:
        """Log in to all hosts at once, and connect to their agents.

        Raises:
          LaunchError: one can't be reached; it is as if nothing had been tried.
        """
        keys = new_keys()
        deadline = time.monotonic() + timeout_s
        check_files(0, len(self._hosts))
        fleet = Fleet(keys, owns=False)
        fleet.on_close = self.end
        try:
            folder = self._open.enter_context(claims.private_folder())
            plan = self._plan(keys.public, folder)
            launch = Launch(self._ssh, plan, fleet.ended, None, [folder])
            self._open.callback(launch.stop)
            started = launch.start(max(1.0, deadline - time.monotonic()))
            fleet.add(
                [
                    (host.name, StartedAgent(agent.host, asdict(there), agent.via))
                    for host, there, agent in zip(
                        self._hosts, self.record.hosts, started, strict=True
                    )
                ],
                launch.explain,
            )
            fleet.place_ranks(self.record.hosts)
        except BaseException:
            fleet.close()
            raise
        return fleet

    def end(self) -> None:
        """Log out; nothing is left here or there."""
        self._open.close()

    def _plan(self, key: str, folder: Path) -> LaunchPlan:
        commands = tuple(
            self._command(number, host, there, key, folder)
            for number, (host, there) in enumerate(zip(self._hosts, self.record.hosts, strict=True))
        )
        names = tuple(host.name for host in self._hosts)
        return LaunchPlan("ssh", len(names), commands, names)

    def _command(
        self, number: int, host: Host, there: HostRecord, key: str, folder: Path
    ) -> Command:
        tunnel = Tunnel(f"{folder}/ssh-{number}.sock", endpoint_for_ssh(there.endpoint))
        line = _line(self._python, ["--agent", there.folder, "--key", key])
        return self._ssh.login(number, host, line, self._python, tunnel)


def hosts_of(typed: Sequence[Host], names: Sequence[str], number: int) -> tuple[Host, ...]:
    """Where to log in to, for each of a cluster's hosts. Pure.

    Where as many were named as there are, they are those, in order. Else each is the one that was
    named as its owner calls it, or called that, with the first one's user.

    Args:
      typed: the hosts that were named. The first one is known to be one of them ...
      number: ... namely this.

    Raises:
      UsageError: one that was named is not one of the cluster's.
    """
    if len(typed) == len(names):
        return tuple(typed)
    known = {host.name: host for host in typed[1:]} | {names[number]: typed[0]}
    if unknown := [name for name in known if name not in names]:
        raise UsageError(
            f"{unknown[0]} is not a host of this cluster. Its hosts are {', '.join(names)}.",
            f"Name one of them, or all in that order: --hosts {','.join(names)}",
        )
    return tuple(known.get(name) or Host(name, user=typed[0].user) for name in names)


def endpoint_for_ssh(endpoint: str) -> str:
    """Where ssh's ``-L`` is to lead, for where an agent listens. Pure."""
    kind, _, place = endpoint.partition("://")
    return place if kind == "ipc" else place.replace("tcp://", "")
