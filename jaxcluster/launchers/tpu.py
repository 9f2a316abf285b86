"""Agents on the hosts of a Cloud TPU slice, over ssh.

For a named slice (``--tpu NAME``) gcloud says how to log in to its hosts (``ssh --dry-run``),
and ssh does that. Or its hosts are named (``--hosts``), or this host's metadata names all.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from jaxcluster.errors import LaunchError, UsageError
from jaxcluster.host.facts import host_tpu_chips
from jaxcluster.host.tpus import tpu_worker
from jaxcluster.launchers.base import AgentOptions, Command, Inside, LaunchPlan, find_program
from jaxcluster.launchers.failures import how_it_ended, last_line, run_briefly
from jaxcluster.launchers.hosts import Host
from jaxcluster.launchers.ssh import SSH
from jaxcluster.options.table import NO_OPTION, SWITCH, TEXT, Field, Option
from jaxcluster.text import plural

GCLOUD_S = 60.0  # each of its commands takes one to three seconds


@dataclass(frozen=True)
class TPU(SSH):
    """``--launcher tpu``; what else ssh is to be given, as for ``--launcher ssh``."""

    tpu: str = ""
    zone: str = ""
    project: str = ""
    internal_ip: bool = False
    # gcloud prints it here: for each host its ssh with all options, and USER@ADDRESS.
    logins: tuple[tuple[str, ...], ...] = ()

    name = "tpu"
    start = "--launcher tpu --tpu my-pod --zone us-central2-b"
    example = "%jaxcluster start --launcher tpu --tpu NAME --zone us-central2-b"
    platform = "tpu"  # a slice whose chips can't be seen is no reason for CPU
    options = (
        *SSH.options,
        Option("--tpu", TEXT, "NAME", "a TPU slice, as gcloud names it",
            "my-pod --zone us-central2-b",
            field=Field("TPU", "As gcloud names it; empty for the one that this runs on", "my-pod"),
            pattern=NO_OPTION),
        Option("--zone", TEXT, "ZONE", "as for gcloud", "us-central2-b",
            field=Field("Zone")),
        Option("--project", TEXT, "NAME", "as for gcloud", "mine", field=Field("Project")),
        Option("--internal-ip", SWITCH, "", "log in to the hosts' internal addresses"),
    )  # fmt: skip
    needs_hosts = False

    @classmethod
    def of(cls, given: dict[str, Any], num_processes: int | None, what: str = "") -> Self:
        made = super().of(given, num_processes)
        if made.hosts and made.tpu:
            raise UsageError("--tpu and --hosts can't be used together.", "Leave out one of them.")
        for flag in ("--zone", "--project", "--internal-ip"):
            if given.get(flag[2:].replace("-", "_")) and not made.tpu:
                raise UsageError(f"{flag} goes with --tpu NAME.", cls.example)
        return made

    @classmethod
    def found_around(cls, environ: Mapping[str, str]) -> Inside | None:
        found = tpu_worker(host_tpu_chips(), environ)
        if found is None or (len(found.hosts) == 1 and found.slices == 1):
            return None  # this host is all of it, and what a start takes by default
        if found.slices > 1:
            what = f"{plural(found.slices, 'TPU slice')} that work together (Multislice)"
            return Inside(what, cls.name, obstacle="jaxcluster starts ranks on one slice only")
        many = plural(len(found.hosts), "host")
        return Inside(f"a TPU slice of {many}, as its worker {found.number}", cls.name)

    def prepared(self, environ: Mapping[str, str]) -> Self:
        if self.tpu:
            return self._asked(environ)
        found = None if self.hosts else tpu_worker(host_tpu_chips(), environ)
        hosts = self.hosts if found is None else tuple(map(Host, found.hosts))
        if not hosts:
            told = "--launcher tpu needs the name of a slice, or its hosts: this is no TPU host."
            example = f"For example: {self.start}   or   --launcher tpu --hosts t0,t1"
            raise UsageError(told, example)
        return replace(super().prepared(environ), hosts=hosts)

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        plan = super().render(agent, folder)
        # One process per host, unless the user says otherwise: all others need TPU_TOPOLOGY.
        return replace(plan, ranks=plan.ranks or (1,) * plan.num_hosts)

    def _program(self, number: int) -> list[str]:
        return list(self.logins[number][:-1]) if self.logins else super()._program(number)

    def _address(self, number: int) -> str:
        return self.logins[number][-1] if self.logins else super()._address(number)

    def typed(self, command: Command) -> str:
        if not self.logins:
            return super().typed(command)
        # gcloud's dry run makes no key known to the slice: only a login by gcloud does.
        login = [*self._gcloud(), f"--worker={command.hosts[0]}", "--command=true"]
        return shlex.join(login)

    # -- gcloud

    def _gcloud(self) -> list[str]:
        """A login to the slice."""
        return [
            "gcloud", "compute", "tpus", "tpu-vm", "ssh",
            f"{self.user}@{self.tpu}" if self.user else self.tpu,
            *([f"--zone={self.zone}"] if self.zone else []),
            *([f"--project={self.project}"] if self.project else []),
            *(["--internal-ip"] if self.internal_ip else []),
        ]  # fmt: skip

    def _asked(self, environ: Mapping[str, str]) -> Self:
        """With the slice's hosts, and how to log in to them, as gcloud says."""
        install = "Install the Google Cloud CLI, or name the slice's hosts: --hosts t0,t1"
        find_program("gcloud", environ, install)
        argv = [*self._gcloud(), "--worker=all", "--dry-run", "--command=true"]
        hint = f"Try: {shlex.join(argv)}"
        try:
            done = run_briefly([*argv, "--quiet"], GCLOUD_S, environ)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"gcloud did not answer within {GCLOUD_S:.0f} s.", hint) from None
        # A line for each host, of words without quotes: ssh -T -i KEY -o A=b ME@1.2.3.4 -- true
        lines = map(str.split, done.stdout.splitlines())
        logins = tuple(tuple(w[:-2]) for w in lines if len(w) > 3 and w[-2:] == ["--", "true"])
        if done.returncode or not logins:
            told = done.stderr.splitlines() or done.stdout.splitlines()
            said = last_line([line for line in told if "ERROR" in line][:1] or told)
            ended = how_it_ended(done.returncode)
            raise LaunchError(f'gcloud {ended}. It says: "{said}"', hint)
        if self.ssh_config or self.jump or self.port or self.ssh != ("ssh",):  # the user's login
            super().prepared(environ)
            addresses = (login[-1].rpartition("@")[2] for login in logins)
            return replace(self, hosts=tuple(Host(one, user=self.user) for one in addresses))
        hosts = tuple(Host(f"{self.tpu}-w{worker}") for worker in range(len(logins)))
        return replace(self, hosts=hosts, logins=logins)
