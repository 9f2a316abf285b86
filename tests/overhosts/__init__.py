"""The tests of tests/ranks on several hosts instead of one machine.

With JAXCLUSTER_TEST_HOSTS=h1,h2 every cluster that is to be started on this machine is started on
these hosts by ssh, its ranks shared out among them: in the tests' own process, in their notebooks'
kernels and in their scripts. Nothing in jaxcluster knows of it.

    PYTHONPATH=$PWD:$PWD/tests python -m rig env JAXCLUSTER_TEST_HOSTS=h1,h2 \
        python -m pytest -p no:cacheprovider tests/ranks

Temporary folders of the tests lie in the rig's shared folder then, which all hosts see. What a test
does to a rank's process from outside goes through this module, to the host of that rank.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pace import Deadline

if TYPE_CHECKING:
    import jaxcluster
    from jaxcluster.hosts.processes import Processes

HOSTS = "JAXCLUSTER_TEST_HOSTS"
SHARED = "JAXCLUSTER_SHARED_DIR"  # set by the rig
STARTUP = Path(__file__).parent / "startup"  # its sitecustomize installs the hook
TARGET = "jaxcluster.cluster.spec"


def hosts() -> list[str]:
    """The hosts that clusters are to be started on; [] for this machine."""
    return [name for name in os.environ.get(HOSTS, "").split(",") if name]


def first_host() -> str:
    """The one with rank 0; "" for this machine."""
    return next(iter(hosts()), "")


def shares(num_ranks: int, names: Sequence[str]) -> str:
    """``--hosts`` for so many ranks, as even as can be: ``h1:2,h2:1``."""
    counts = [len(range(i, num_ranks, len(names))) for i in range(len(names))]
    return ",".join(f"{name}:{n}" for name, n in zip(names, counts, strict=True) if n)


# --------------------------------------------------------------------------- the hook


def install() -> None:
    """From now on a cluster that would be started on this machine is started on the hosts."""
    if not hosts():
        return
    if TARGET in sys.modules:
        _redirect(sys.modules[TARGET])
    else:  # importing it here would make each Python's start slow
        sys.meta_path.insert(0, _Waiting())


class _Waiting(MetaPathFinder):
    """Redirects ``jaxcluster.cluster.spec`` once it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _redirect(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _redirect(module: Any) -> None:
    make_spec: Callable[..., Any] = module.make_spec
    if hasattr(make_spec, "__wrapped__"):
        return

    @functools.wraps(make_spec)
    def elsewhere(num_processes: int | None = None, **options: Any) -> Any:
        is_count = isinstance(num_processes, int) and num_processes > 0
        here = options.get("launcher") in (None, "local")
        if here and (is_count or num_processes is None):
            num_processes = num_processes or 2
            where = shares(num_processes, hosts())
            options = {**options, "launcher": "ssh", "hosts": where}
        return make_spec(num_processes, **options)

    for one in [*sys.modules.values()]:  # some have imported it by name already
        if vars(one).get("make_spec") is make_spec:
            vars(one)["make_spec"] = elsewhere
    # The tests compare sentences; tests/launchers shows that they name the hosts.
    importlib.import_module("jaxcluster.ranks").MOST_HOSTS = 0


def variables() -> dict[str, str]:
    """What kernels and scripts need in their environment to be redirected, too."""
    if not hosts():
        return {}
    before = os.environ.get("PYTHONPATH")
    paths = [str(STARTUP), str(STARTUP.parents[1]), *([before] if before else [])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def shared_folder() -> Path:
    """A folder that the hosts share."""
    return Path(os.environ[SHARED])


# --------------------------------------------------------------------------- a rank's process


def on_host(host: str, *command: str) -> str:
    """What a command on one of the hosts prints; an AssertionError if it fails."""
    line = ("ssh", host, " ".join(command))
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Process:
    """A cluster's process, on whatever host it is, as somebody sees it who has a shell there.

    Attributes:
        host: its name; of no use where the tests run on one machine.
        pid: on its host.
    """

    host: str
    pid: int

    def send(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        if hosts():
            on_host(self.host, "kill", f"-{int(number)}", str(self.pid))
        else:
            os.kill(self.pid, number)

    @property
    def state(self) -> str:
        """The kernel's letter for its state; "" when it is gone."""
        path = Path(f"/proc/{self.pid}/stat")
        try:
            stat = on_host(self.host, f"cat {path} || true") if hosts() else path.read_text()
        except OSError:
            return ""
        return stat.rpartition(")")[2].split()[0] if stat else ""

    @property
    def lives(self) -> bool:
        """Whether it is there and no zombie."""
        return self.state not in ("", "Z", "X")


def process_of(cluster: jaxcluster.Cluster, rank: int) -> Process:
    """A rank's present process."""
    return Process(cluster.record.facts[rank].hostname, cluster.record.pids[rank])


def processes_of(cluster: jaxcluster.Cluster) -> list[Process]:
    """All ranks' present processes."""
    return [process_of(cluster, rank) for rank in range(cluster.num_processes)]


def coordinator_of(cluster: jaxcluster.Cluster) -> Process:
    """The process of JAX's coordination service, which is on the first host."""
    return Process(cluster.record.facts[0].hostname, cluster.record.coordinator_pid)


def started_by(processes: Processes, pids: Sequence[int]) -> list[Process]:
    """The ranks' processes that ``processes.start()`` has started with these pids."""
    if not hosts():
        return [Process("", pid) for pid in pids]
    fleet = processes.fleet
    return [Process(fleet.host_of(rank).name, pid) for rank, pid in enumerate(pids)]


def send_signal(cluster: jaxcluster.Cluster, rank: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a rank's process, from outside."""
    process_of(cluster, rank).send(number)


def place(cluster: jaxcluster.Cluster, rank: int) -> str:
    """What messages say of where a rank is: "" where that goes without saying."""
    return f" on host {cluster.record.facts[rank].hostname}" if hosts() else ""


# --------------------------------------------------------------------------- what is left


def saved_folders() -> set[str]:
    """Where ranks' variables are saved now: folders, of all clusters, with their hosts."""
    if not hosts():
        from jaxcluster.hosts.agent import folder

        agents = [(path, record.memory) for path, record in folder.records(folder.root())]
        places = {Path(place) for agent in agents for place in agent}
        return {str(path) for place in places for path in place.glob("state-*")}
    listed = ((h, on_host(h, "ls -d /dev/shm/jaxcluster-*/state-* || true")) for h in hosts())
    return {f"{host}:{path}" for host, paths in listed for path in paths.split()}


# The folder for agents' folders stays, and so does IPython's, which any IPython makes.
LOOK = "ls -d /tmp/* /tmp/jaxcluster-*/* /dev/shm/* /run/* ~/* 2>/dev/null; ps -eo args"
NOT_LEFT = re.compile(r"sshd|ps -eo|(ba)?sh -c|ls -d|\[|/tmp/jaxcluster-\d+$")


def look() -> set[str]:
    """What there is on the hosts: processes, and files where clusters may have some."""
    lines = [(host, line.strip()) for host in hosts() for line in on_host(host, LOOK).splitlines()]
    return {f"{host}: {line}" for host, line in lines if not NOT_LEFT.match(line)}


@contextlib.contextmanager
def nothing_left(deadline_s: float) -> Iterator[None]:
    """What begins meanwhile on the hosts must be gone ``deadline_s`` after the end, at the latest.

    On one machine it does nothing.
    """
    before = look()
    yield
    deadline = Deadline(deadline_s)
    while left := look() - before:
        assert not deadline.is_over, f"still there after {deadline}: {sorted(left)}"
        time.sleep(0.1)
