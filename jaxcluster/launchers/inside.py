"""The allocation that this process runs in: Slurm's, a batch system's, mpiexec's or a TPU slice's.

``find`` says what it is, what to type for it, and how many ranks it stands for: as many as JAX's
own cluster detection (``jax/_src/clusters`` of jax 0.10.2 and 0.12) would number there, and in the
same order. Pure but for the arguments' defaults.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxcluster.errors import UsageError
from jaxcluster.host.facts import host_tpu_chips
from jaxcluster.host.tpus import TpuWorker, tpu_worker
from jaxcluster.launchers.hosts import Host, parse_hostfile, read_hostfile
from jaxcluster.launchers.mpi import hosts_of_job
from jaxcluster.launchers.slurm import allocation_of, is_over
from jaxcluster.options import written
from jaxcluster.text import plural

# An mpiexec's process count and this process's place, whichever it is: Open MPI's, MPICH's.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_LAUNCHERS = re.compile(r"(mpiexec|mpirun|orterun|prterun|prte)(\.\w+)*")
_HOSTS = ("--host", "-host", "-H", "-hosts", "--hosts")
_HOSTFILES = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")


@dataclass(frozen=True)
class Inside:
    """An allocation in which this process runs.

    Attributes:
      what: what it is: "Slurm's job 6 (2 nodes, 4 tasks)".
      launcher: what ``--launcher`` takes for it.
      options: what else is typed for it, by the options' names.
      num_processes: what ``-n`` takes for it; None where the launcher knows, or the devices decide.
      obstacle: why it can't be taken as it stands, and what can be done; empty where it can.
      is_offered: whether it is worth a word to who has not asked for it.
    """

    what: str
    launcher: str
    options: Mapping[str, str] = field(default_factory=dict)
    num_processes: int | None = None
    obstacle: str = ""
    is_offered: bool = True

    @property
    def typed(self) -> str:
        """What is typed behind ``%jaxcluster start`` to take it."""
        launcher = self.launcher if self.launcher != "local" else None
        given = {"num_processes": self.num_processes, "launcher": launcher, **self.options}
        return written.line(given)

    @property
    def offer(self) -> str:
        """One line that says so to who has started elsewhere; nothing where it can't be taken."""
        if self.obstacle or not self.is_offered:
            return ""
        always = "" if self.launcher == "local" else "   (or always: --launcher auto)"
        return (
            f"This notebook runs in {self.what}. To use it: %jaxcluster start {self.typed}{always}"
        )


def find(
    environ: Mapping[str, str] = os.environ,
    *,
    ancestors: Callable[[], Sequence[Sequence[str]]] | None = None,
    worker: Callable[[], TpuWorker | None] | None = None,
    has: Callable[[str], bool] | None = None,
    listed: Callable[[str], bool] | None = None,
) -> Inside | None:
    """The allocation that a process with this environment runs in; None where it is in none.

    A batch system's comes first: what its mpiexec has started has no more hosts than the job.

    Args:
      ancestors: the command lines of the processes above this one, the nearest first.
      worker: which host of a TPU slice this is; takes up to ``tpus.ASK_S`` on a TPU host.
      has: whether there is a command of this name.
      listed: whether Slurm knows a job still.
    """
    has = has or (lambda name: shutil.which(name, path=environ.get("PATH")) is not None)
    return (
        _slurm(environ, has, listed)
        or _batch(environ, has)
        or _mpiexec(environ, ancestors or _ancestors)
        or _tpu(worker or (lambda: tpu_worker(host_tpu_chips(), environ)))
    )


def _slurm(
    environ: Mapping[str, str],
    has: Callable[[str], bool],
    listed: Callable[[str], bool] | None,
) -> Inside | None:
    if (here := allocation_of(environ)) is None or is_over(environ, listed):
        return None
    size = plural(len(here.nodes), "node") if here.nodes else "unknown nodes"
    tasks = f", {plural(sum(here.tasks), 'task')}" if here.tasks else ""
    obstacle = "" if has("srun") else "there is no srun on this machine"
    if not here.nodes:
        obstacle = "SLURM_JOB_NODELIST does not name its nodes: --new-job, or --launcher local"
    # On the job's one node, with one task: a start takes all of it as it is. A shell of salloc's,
    # which has no SLURMD_NODENAME, may be elsewhere.
    is_all = len(here.nodes) == 1 and not here.tasks and bool(environ.get("SLURMD_NODENAME"))
    return Inside(
        f"Slurm's job {here.job} ({size}{tasks})",
        "slurm",
        obstacle=obstacle,
        is_offered=not is_all,
    )


def _batch(environ: Mapping[str, str], has: Callable[[str], bool]) -> Inside | None:
    """A job of PBS, LSF or Grid Engine, whose hosts mpiexec knows."""
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
    obstacle = "" if has("mpiexec") else "there is no mpiexec on this machine"
    return Inside(what, "mpi", obstacle=obstacle)


def _mpiexec(
    environ: Mapping[str, str], ancestors: Callable[[], Sequence[Sequence[str]]]
) -> Inside | None:
    """What mpiexec was told: its processes here, or the hosts on its command line."""
    size, local = _number(environ, _SIZES), _number(environ, _LOCAL_SIZES)
    if size is None:
        return None
    argv = next((a for a in ancestors() if _is_launcher(a)), ())
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


def _tpu(worker: Callable[[], TpuWorker | None]) -> Inside | None:
    if (found := worker()) is None or (len(found.hosts) == 1 and found.slices == 1):
        return None  # this host is all of it, and what a start takes by default
    what = f"a TPU slice of {plural(len(found.hosts), 'host')}, as its worker {found.number}"
    if found.slices > 1:
        what = f"{plural(found.slices, 'TPU slice')} that work together (Multislice)"
        return Inside(what, "tpu", obstacle="jaxcluster starts ranks on one slice only")
    return Inside(what, "tpu")


def _number(environ: Mapping[str, str], names: Sequence[str]) -> int | None:
    return next((int(environ[n]) for n in names if environ.get(n, "").isdecimal()), None)


# ------------------------------------------------------------------- mpiexec's command line


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


def _ancestors() -> list[list[str]]:
    """The command lines of the processes above this one, the nearest first (Linux)."""
    found: list[list[str]] = []
    pid = os.getppid()
    while pid > 1 and len(found) < 32:
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            break
        found.append([os.fsdecode(word) for word in argv if word])
        parent = re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)
        pid = int(parent[1]) if parent is not None else 0
    return found
