"""Agents by mpiexec, one per host: Open MPI 4 and 5, MPICH. No agent and no rank uses MPI.

mpiexec logs in to the hosts with ssh, or through the batch system in which it runs. The agents have
no input that would end with us, so they live as long as mpiexec does.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxcluster.errors import LauncherUnavailable, UsageError
from jaxcluster.launchers.base import (
    HOSTFILE,
    NAMED_HOSTS,
    AgentOptions,
    Command,
    Inside,
    Launcher,
    LaunchPlan,
    agent_command,
    find_program,
    lacks,
)
from jaxcluster.launchers.failures import run_briefly
from jaxcluster.launchers.hosts import Host, read_hostfile
from jaxcluster.launchers.slurm import allocation_of
from jaxcluster.launchers.ssh import NEVER_ASK
from jaxcluster.options.table import PATH, WORDS, Option
from jaxcluster.plan.shares import place
from jaxcluster.text import plural

# mpiexec first ends its daemons on the hosts. It gives an agent on its own host a second or more
# to end. If mpiexec is killed before, it leaves its folder in /tmp.
TERM_S = 10.0
# A notebook's own; of a Slurm step's, mpiexec would believe that it is one of its tasks.
DROPPED = ("JPY_PARENT_PID", "JPY_INTERRUPT_EVENT", "IPP_CONNECTION_INFO", "PMI_RANK", "PMIX_RANK")


@dataclass(frozen=True)
class MPI(Launcher):
    """``--launcher mpi``; without hosts on those of the batch job that this process is in."""

    hosts: tuple[Host, ...] = ()
    num_processes: int | None = None
    mpiexec: str = "mpiexec"
    mpi_args: tuple[str, ...] = ()
    flavour: str = "openmpi4"  # or ``openmpi5`` or ``mpich``; ``prepared`` asks the command
    as_root: bool = False  # which Open MPI refuses without being told to

    name = "mpi"
    start = "--launcher mpi -n 4"
    example = "%jaxcluster start --launcher mpi --hosts h1:2,h2:2"
    options = (
        NAMED_HOSTS, HOSTFILE,
        Option("--mpiexec", PATH, "PATH", "the mpiexec to run", "/opt/mpi/bin/mpiexec"),
        Option("--mpi-args", WORDS, "WORDS", "further arguments for mpiexec", "='--bind-to none'"),
    )  # fmt: skip
    refused = "Inside a batch job, --hosts can name only the job's hosts, each with its slots."

    @classmethod
    def found_around(cls, environ: Mapping[str, str]) -> Inside | None:
        jobs = (("PBS_JOBID", "PBS"), ("LSB_JOBID", "LSF"), ("JOB_ID", "Grid Engine"))
        found = [(environ[name], system) for name, system in jobs if environ.get(name)]
        try:
            hosts = hosts_of_job(environ)
        except UsageError:  # the file that names them is gone, or is no such file
            return None
        ranks = sum(host.ranks or 1 for host in hosts)
        if not found or ranks < 2:  # one is the notebook's own
            return None
        job, system = found[0]
        if len(hosts) == 1 and system != "PBS":
            return None  # its slots are cores, and how many ranks this host gets its devices say
        what = f"{system}'s job {job} ({plural(len(hosts), 'host')}, {plural(ranks, 'slot')})"
        return Inside(what, cls.name, obstacle=lacks("mpiexec", environ))

    def prepared(self, environ: Mapping[str, str]) -> MPI:
        load = "Load its module before the notebook starts, or name it: --mpiexec PATH"
        find_program(self.mpiexec, environ, load)
        try:
            done = run_briefly([self.mpiexec, "--version"], 30, environ)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LauncherUnavailable(f"{self.mpiexec} --version: {error}") from None
        flavour = flavour_of(done.stdout + done.stderr)
        if flavour is None:
            raise LauncherUnavailable(
                f"{self.mpiexec} is not a known mpiexec (Open MPI 4 and 5, MPICH).",
                "Name another: --mpiexec /path/to/mpiexec",
            )
        hosts = self.hosts or hosts_of_job(environ)
        if not hosts:
            raise UsageError("--launcher mpi needs hosts.", f"For example: {self.example}")
        return replace(self, flavour=flavour, hosts=hosts, as_root=os.geteuid() == 0)

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        for host in self.hosts:
            if host.user or host.port or ":" in host.name:
                raise UsageError(
                    f"mpiexec takes plain names: {host.name} has a user, a port, or is an address.",
                    f"They belong in the ssh config: Host {host.name}",
                )
        names = tuple(host.name for host in self.hosts)
        argv = (self.mpiexec, *self.mpi_args, *self._options(names), *agent_command(agent))
        command = Command(
            argv, tuple(range(len(names))), agent.python, env=NEVER_ASK,
            drop=DROPPED, term_s=TERM_S,
        )  # fmt: skip
        ranks = place([(h.name, h.ranks) for h in self.hosts], self.num_processes)
        return LaunchPlan("mpi", len(names), (command,), names, ranks)

    def _options(self, names: Sequence[str]) -> list[str]:
        """One agent on each of these hosts, bound to no core, in this order."""
        n = str(len(names))
        if self.flavour == "mpich":
            # Else it takes along all of this process's environment.
            options = f"-genvnone -hosts {','.join(names)} -n {n} -ppn 1 -bind-to none"
            return options.split()
        root = ["--allow-run-as-root"] if self.as_root else []
        # Else it cuts "h1.site" down to "h1".
        option = {"openmpi4": ("--mca", "orte"), "openmpi5": ("--prtemca", "prte")}[self.flavour]
        dotted = any("." in name for name in names)
        full = [option[0], f"{option[1]}_keep_fqdn_hostnames", "1"] if dotted else []
        hosts = ",".join(f"{name}:1" for name in names)
        options = f"--host {hosts} -n {n} --map-by ppr:1:node --bind-to none"
        return [*root, *full, *options.split()]

    def typed(self, command: Command) -> str:
        return f"ssh {self.hosts[0].name} true"


def flavour_of(version: str) -> str | None:
    """Which mpiexec it is, by what ``mpiexec --version`` prints; None for another."""
    if re.search(r"\bHYDRA\b", version, re.IGNORECASE):
        return "mpich"
    found = re.search(r"\((?:OpenRTE|Open MPI)\) (\d+)\.", version)
    if found is None:
        return "openmpi5" if re.search(r"\(PRRTE\)|\bPRTE\b|prterun", version) else None
    return "openmpi5" if int(found[1]) >= 5 else "openmpi4"


def hosts_of_job(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of the batch job that this process is in; none outside of one."""
    if here := allocation_of(environ):
        return tuple(map(Host, here.nodes))
    for variable in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
        if path := environ.get(variable):
            return read_hostfile(Path(path))
    try:  # Grid Engine: "host slots queue processors"
        text = Path(environ.get("PE_HOSTFILE", "/dev/null")).read_text()
    except OSError:
        return ()
    words = [line.split() for line in text.splitlines()]
    return tuple(Host(w[0], int(w[1])) for w in words if len(w) > 1 and w[1].isdecimal())
