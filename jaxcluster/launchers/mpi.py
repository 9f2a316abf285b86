"""Agents by mpiexec, one per host: Open MPI 4 and 5, MPICH. No agent and no rank uses MPI.

mpiexec logs in to the hosts with ssh by itself, or through the batch system that it finds itself
in. The agents have no input that would end with us, so they live as long as mpiexec does.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxcluster.agent.report import launcher_number
from jaxcluster.errors import LauncherUnavailable, UsageError
from jaxcluster.launchers.base import (
    AgentOptions,
    Command,
    End,
    Launcher,
    LaunchPlan,
    Reason,
    agent_command,
)
from jaxcluster.launchers.detection import Inside, Surroundings
from jaxcluster.launchers.hosts import Host, expand_nodelist, parse_hostfile, place, read_hostfile
from jaxcluster.launchers.reasons import how_it_ended, last_line, python_trouble, run_briefly
from jaxcluster.launchers.shared_options import HOSTFILE, NAMED_HOSTS
from jaxcluster.launchers.ssh import NEVER_ASK, login_trouble
from jaxcluster.options.table import Option
from jaxcluster.options.value_types import PATH, WORDS
from jaxcluster.text import plural

# It ends its daemons on the hosts first, and gives an agent on its own host a second and more to
# end; killed before, it leaves its folder in /tmp.
TERM_S = 10.0
EXAMPLE = "--launcher mpi --hosts h1:2,h2:2"
# A notebook's own; of a Slurm step's, mpiexec would believe that it is one of its tasks.
DROPPED = ("JPY_PARENT_PID", "JPY_INTERRUPT_EVENT", "IPP_CONNECTION_INFO", "PMI_RANK", "PMIX_RANK")
# What an mpiexec sets for its processes: one that is started by such a process must not read it.
_SET_FOR_PROCESSES = re.compile(
    r"OMPI_(COMM_WORLD|MCA_(orte|ess|pmix$|initial_wdir|num_procs|shmem_RUNTIME)|WORLD|ARGV|COMMAND"
    r"|APP|NUM_APP|FIRST|FILE|UNIVERSE|TOOL)|PMIX?_|PRTE_(LAUNCHED|SHARED)|HYDI_|MPI_LOCAL"
)

# An mpiexec's process count and this process's place, whichever it is: Open MPI's, MPICH's.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_LAUNCHERS = re.compile(r"(mpiexec|mpirun|orterun|prterun|prte)(\.\w+)*")
_HOSTS = ("--host", "-host", "-H", "-hosts", "--hosts")
_HOSTFILES = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")


@dataclass(frozen=True)
class MPI(Launcher):
    """``--launcher mpi``.

    Attributes:
      hosts: where, in order of rank; empty for those of the batch job that this process is in.
      num_processes: ``-n``; None where the hosts have their numbers, or their devices decide.
      mpiexec: the command.
      mpi_args: further arguments for it, before all of ours.
      flavour: ``openmpi4``, ``openmpi5`` or ``mpich``; ``prepared`` asks the command.
      as_root: whether this user is root, which Open MPI refuses without being told to;
        ``prepared`` looks.
      inherited: variables of an mpiexec that has started this process; ``prepared`` looks.
    """

    hosts: tuple[Host, ...] = ()
    num_processes: int | None = None
    mpiexec: str = "mpiexec"
    mpi_args: tuple[str, ...] = ()
    flavour: str = "openmpi4"
    as_root: bool = False
    inherited: tuple[str, ...] = ()

    name = "mpi"
    start = "--launcher mpi -n 4"
    example = "%jaxcluster start --launcher mpi --hosts h1:2,h2:2"
    options = (
        NAMED_HOSTS, HOSTFILE,
        Option("--mpiexec", PATH, "PATH", "the mpiexec to run", "/opt/mpi/bin/mpiexec"),
        Option("--mpi-args", WORDS, "WORDS", "further arguments for it", "='--bind-to none'"),
    )  # fmt: skip

    @classmethod
    def found_around(cls, around: Surroundings) -> Inside | None:
        return _batch_job(around) or _mpiexec(around)

    def prepared(self, environ: Mapping[str, str]) -> MPI:
        if shutil.which(self.mpiexec, path=environ.get("PATH")) is None:
            raise LauncherUnavailable(
                f"There is no {self.mpiexec} on this machine.",
                "Load its module before the notebook starts, or name it: --mpiexec PATH",
            )
        try:
            done = run_briefly([self.mpiexec, "--version"], 30, environ)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LauncherUnavailable(f"{self.mpiexec} --version: {error}") from None
        flavour = flavour_of(done.stdout + done.stderr)
        if flavour is None:
            said = last_line((done.stdout + done.stderr).splitlines())
            raise LauncherUnavailable(
                f"{self.mpiexec} is not a known mpiexec (Open MPI 4 and 5, MPICH). It says: "
                f'"{said}"',
                "Name another: --mpiexec /path/to/mpiexec",
            )
        hosts = self.hosts or hosts_of_job(environ)
        if not hosts:
            raise UsageError("--launcher mpi needs hosts.", f"For example: {EXAMPLE}")
        under = "OMPI_COMM_WORLD_SIZE" in environ or "PMI_SIZE" in environ
        inherited = tuple(sorted(k for k in environ if under and _SET_FOR_PROCESSES.match(k)))
        return replace(
            self, flavour=flavour, hosts=hosts, as_root=os.geteuid() == 0, inherited=inherited
        )

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        for host in self.hosts:
            if host.user or host.port or ":" in host.name:
                raise UsageError(
                    f"mpiexec takes plain host names, not {host}.",
                    f"User, port and address belong in the ssh config: Host {host.name}",
                )
        names = tuple(host.name for host in self.hosts)
        ranks = place(self.hosts, self.num_processes)
        argv = (
            self.mpiexec,
            *self.mpi_args,
            *self._options(names),
            *agent_command(agent),
        )
        command = Command(
            argv,
            tuple(range(len(names))),
            agent.python,
            env=NEVER_ASK,
            drop=tuple(dict.fromkeys((*DROPPED, *self.inherited))),
            term_s=TERM_S,
        )
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

    def explain(self, end: End, hosts: Sequence[str] = ()) -> Reason:
        return explain_mpi(end)


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
    if nodelist := environ.get("SLURM_JOB_NODELIST"):
        try:
            return tuple(Host(name) for name in expand_nodelist(nodelist))
        except ValueError:
            return ()
    for variable in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE"):
        if path := environ.get(variable):
            if variable != "PE_HOSTFILE":
                return read_hostfile(Path(path))
            try:  # Grid Engine: "host slots queue processors"
                lines = Path(path).read_text().split("\n")
            except OSError:
                continue
            words = [line.split() for line in lines if line.strip()]
            return tuple(Host(w[0], int(w[1])) for w in words if len(w) > 1 and w[1].isdecimal())
    return ()


def explain_mpi(end: End) -> Reason:
    """Why mpiexec ended, or its agents never came. Pure."""
    lines = [line for line in end.errors if re.search(r"\w", line)]
    text = "\n".join(lines)
    command = shlex.join(end.command.argv[:1])
    if not end.was_ready:
        if (login := login_trouble(lines)) is not None:
            return login
        if re.search(r"run as root|as root", text) and "allow-run-as-root" in text:
            return Reason(
                f"{command} does not run as root.", "Allow it: --mpi-args=--allow-run-as-root"
            )
        if re.search(r"not enough slots|All nodes which are allocated .* filled", text):
            return Reason(
                f"{command} does not have enough slots: its batch job has other hosts. It says: "
                f'"{lines[0]}"',
                "Only hosts of the job can be named in --hosts.",
            )
        # Open MPI names the program and the host on lines of their own.
        found = re.search(r"(?:Executable|Application name): *(\S+)", text)
        node = re.search(r"Node: *(\S+)|\[proxy:\d+@(\S+)\]", text)
        where = f"on {node[1] or node[2]}" if node is not None else "on a host"
        if found is not None:
            return Reason(
                f"There is no Python {found[1]} {where}.",
                "Name the right one: --python PATH",
            )
        if (trouble := python_trouble(lines, end.command.python, where)) is not None:
            return trouble
    said = _telling(lines)
    evidence = f' It says: "{said}"' if said else ""
    if end.code is None:
        return Reason(
            f"{command} runs, but not all agents have started.{evidence}",
            "Wait longer: --timeout 180",
        )
    if end.was_ready:
        return Reason(f"{command} {how_it_ended(end.code)}, and the agents with it.{evidence}")
    return Reason(
        f"{command} {how_it_ended(end.code)} and has started no agents.{evidence}",
        f"Try: {command} -n 1 hostname",
    )


def _telling(lines: Sequence[str]) -> str:
    """The line that says most: what failed, not what always stands around it."""
    for line in lines:
        if re.search(r"error|unable|failed|could not|not found|killed|signal", line, re.IGNORECASE):
            return line.strip()
    return last_line(lines)


# -------------------------------------------------------------- what a process is in


def _batch_job(around: Surroundings) -> Inside | None:
    """A job of PBS, LSF or Grid Engine, whose hosts mpiexec knows."""
    environ = around.environ
    jobs = (("PBS_JOBID", "PBS"), ("LSB_JOBID", "LSF"), ("JOB_ID", "Grid Engine"))
    found = [(environ[name], system) for name, system in jobs if environ.get(name)]
    try:
        hosts = hosts_of_job(environ)
    except UsageError:  # the file that names them is gone, or is no such file
        return None
    if not found or not hosts:
        return None
    job, system = found[0]
    ranks = sum(host.ranks or 1 for host in hosts)
    if ranks == 1:
        return None  # the notebook's own
    if len(hosts) == 1 and system != "PBS":
        return None  # its slots are cores, and how many ranks this host gets its devices say
    what = f"{system}'s job {job} ({plural(len(hosts), 'host')}, {plural(ranks, 'slot')})"
    return Inside(what, "mpi", obstacle=around.lacks("mpiexec"))


def _mpiexec(around: Surroundings) -> Inside | None:
    """What mpiexec was told: its processes here, or the hosts on its command line."""
    size, local = (launcher_number(around.environ, names) for names in (_SIZES, _LOCAL_SIZES))
    if size is None:
        return None
    argv = next((a for a in around.ancestors() if _is_launcher(a)), ())
    hosts = _hosts_of(argv)
    slots = sum(host.ranks or 1 for host in hosts)
    if len(hosts) > 1:
        given = all(host.ranks for host in hosts)
        what = f"mpiexec ({plural(len(hosts), 'host')}" + (f", {slots} slots)" if given else ")")
        return Inside(what, "mpi", {"hosts": ",".join(map(str, hosts)), **_which(argv[0])})
    if size > 1 and local == size:
        return Inside(f"mpiexec ({size} processes on this host)", "local", {}, size)
    if size > 1:
        why = "its hosts are not known here: --launcher mpi --hosts h1:2,h2:2"
        return Inside(f"mpiexec ({size} processes on several hosts)", "mpi", {}, None, why)
    return None


def _is_launcher(argv: Sequence[str]) -> bool:
    return bool(argv) and _LAUNCHERS.fullmatch(os.path.basename(argv[0])) is not None


def _which(program: str) -> dict[str, str]:
    """The option that names the mpiexec of a command line; none where PATH finds it."""
    folder, name = os.path.split(program)
    if not os.path.isabs(program):
        return {}
    name = "mpiexec" if name.startswith("prte") else name  # Open MPI 5's becomes prterun
    return {"mpiexec": os.path.join(folder, name)}


def _hosts_of(argv: Sequence[str]) -> tuple[Host, ...]:
    """The hosts that a command line of mpiexec's names, with their slots; none if it can't tell."""
    try:
        for option, value in _options(argv):
            if option in _HOSTS:
                return parse_hostfile("\n".join(value.split(",")), option)  # "h1,h1" is two slots
            if option in _HOSTFILES:
                return read_hostfile(Path(value))
    except UsageError:  # in a form of mpiexec's own
        pass
    return ()


def _options(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each word that might be an option, with what stands behind it."""
    for word, following in itertools.pairwise([*argv[1:], ""]):
        name, equals, value = word.partition("=")
        yield (name, value) if equals else (word, following)
