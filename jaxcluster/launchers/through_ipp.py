"""Agents by any of ipyparallel's engine launchers: PBS, SGE, LSF, HTCondor, a site's own.

They differ in all but one thing: what they start is ``engine_cmd``. Here that is a script in a
folder that the hosts share, which becomes an agent and writes its lines beside itself. The
launcher itself runs in a process of its own (``main``), which prints those lines, and stops the
launcher when its input ends: so a job that is still queued goes, too, when the notebook is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Self

from jaxcluster.errors import LauncherUnavailable, UsageError
from jaxcluster.launchers.base import (
    AgentOptions,
    Command,
    End,
    Launcher,
    LaunchPlan,
    PlannedFile,
    Reason,
    agent_argv,
)
from jaxcluster.launchers.hosts import Host, place
from jaxcluster.launchers.quoting import sh_line
from jaxcluster.launchers.reasons import how_it_ended, last_line, python_trouble
from jaxcluster.launchers.shared_options import NODES, NTASKS_PER_NODE
from jaxcluster.options.table import Field, Option
from jaxcluster.options.value_types import TEXT
from jaxcluster.supervision.starting import ROOT

GROUP = "ipyparallel.engine_launchers"
LOOK_S = 0.1
STOP_S = 15.0  # qdel and its like may take a while


@dataclass(frozen=True)
class ThroughIPP(Launcher):
    """``--launcher ipp:NAME``.

    Attributes:
      engines: NAME, as ipyparallel's entry points and ``ipcluster --engines`` know it.
      ipp_profile: an ipyparallel profile, whose settings for the launcher apply; empty for none.
      nodes: how many to start; what ipyparallel calls ``n``. One task of a batch template becomes
        one agent.
      num_processes: ``-n``, shared out among them; None where ``ntasks_per_node`` or devices
        decide.
      ntasks_per_node: how many ranks each agent gets.
      here: this machine's Python, for the launcher's process.
    """

    engines: str
    ipp_profile: str = ""
    nodes: int = 1
    num_processes: int | None = None
    ntasks_per_node: int | None = None
    here: str = sys.executable

    name = "ipp"
    start = "--launcher ipp:pbs"
    example = "%jaxcluster start --launcher ipp:pbs --ipp-profile NAME --nodes 2 -n 4"
    takes = "one of ipyparallel's launchers"
    options = (
        Option("--ipp-profile", TEXT, "NAME", "an ipyparallel profile with its settings",
            "pbs -n 4", field=Field("Its profile", "An ipyparallel profile of yours", "default")),
        NODES, NTASKS_PER_NODE,
    )  # fmt: skip

    @classmethod
    def of(cls, given: dict[str, Any], num_processes: int | None, what: str = "") -> Self:
        return super().of({**given, "engines": what}, num_processes)

    @property
    def shares_folder(self) -> bool:
        return True

    def prepared(self, environ: Mapping[str, str]) -> ThroughIPP:
        known = sorted(point.name for point in entry_points(group=GROUP))
        usable = [name for name in known if name != "jaxcluster"]  # our own local one
        if self.engines not in usable:
            raise LauncherUnavailable(
                f"ipyparallel has no engine launcher {self.engines!r}.",
                "It has: " + ", ".join(f"ipp:{name}" for name in usable),
            )
        return self

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        if self.nodes < 1:
            raise UsageError("--nodes must be at least 1.", "For example: --nodes 2")
        hosts = [Host(f"agent {i}", self.ntasks_per_node) for i in range(self.nodes)]
        ranks = place(hosts, self.num_processes)
        task = {
            "engines": self.engines,
            "profile": self.ipp_profile,
            "n": self.nodes,
            "folder": folder,
        }
        files = (
            PlannedFile(f"{folder}/agent.sh", script(agent, folder), 0o700),
            PlannedFile(f"{folder}/ipp.json", json.dumps(task, indent=1) + "\n"),
        )
        source = (
            f"import sys; sys.path.append({ROOT!r}); "
            "from jaxcluster.launchers.through_ipp import main; main(sys.argv[1])"
        )
        command = Command(
            (self.here, "-P", "-c", source, f"{folder}/ipp.json"),
            tuple(range(self.nodes)),
            agent.python,
            keeps_stdin=True,
            stdin_s=STOP_S + 2,
            term_s=2.0,
        )
        note = f"{folder} must be a folder that the hosts share"
        return LaunchPlan("ipp", self.nodes, (command,), (), ranks, files, (note,))

    def explain(self, end: End, hosts: Sequence[str] = ()) -> Reason:
        return explain_ipp(end, self.engines)


def script(agent: AgentOptions, folder: str) -> str:
    """What ipyparallel starts in the place of an engine. It ignores the words of an engine's.

    Each writes files of its own: appending to one from several hosts loses lines on NFS.
    """
    mine = f"{shlex.quote(folder)}/agent-$(hostname)-$$"
    exports = [f"export {name}={shlex.quote(value)}" for name, value in agent.env]
    line = f"exec {sh_line(agent_argv(agent), agent.python)} >{mine}.out 2>{mine}.err </dev/null"
    return "\n".join(["#!/bin/sh", *exports, line]) + "\n"


def explain_ipp(end: End, engines: str) -> Reason:
    """Why ipyparallel's launcher ended, or its agents never came. Pure."""
    if not end.was_ready:
        trouble = python_trouble(end.errors, end.command.python, "on the hosts")
        if trouble is not None:
            return trouble
    said = last_line(end.errors)
    evidence = f' It says: "{said}"' if said else ""
    if (profile := re.search(r"Couldn't find profile '(.*?)'", said)) is not None:
        return Reason(
            f"There is no ipyparallel profile {profile[1]!r} here.",
            f"ipython profile create --parallel {profile[1]} makes one. Its ipcluster_config.py "
            f"must set up the launcher {engines!r}.",
        )
    if end.code is None:
        return Reason(
            f"ipyparallel's launcher {engines!r} has started, but not all agents have.{evidence}",
            "Is the job queued? Wait longer: --timeout 600",
        )
    return Reason(
        f"ipyparallel's launcher {engines!r} {how_it_ended(end.code)}.{evidence}",
        f"Does it start engines? ipcluster start --engines {engines} -n 1"
        if not end.was_ready
        else "",
    )


# ---------------------------------------------------------------------- the launcher's own process


def main(path: str) -> None:
    """Start the agents that a file tells of; end them when the standard input ends."""
    task = json.loads(Path(path).read_text())
    try:
        sys.exit(asyncio.run(_serve(task)))
    except subprocess.CalledProcessError as error:  # qsub; its stderr was ours
        for line in (error.output or b"").decode(errors="replace").splitlines():
            print(line, file=sys.stderr)
        command = shlex.join(map(str, error.cmd)) if isinstance(error.cmd, list) else error.cmd
        print(f"{command} ended with code {error.returncode}", file=sys.stderr)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(1)


async def _serve(task: Mapping[str, Any]) -> int:
    folder = Path(task["folder"])
    tempfile.tempdir = str(folder)  # it may be killed while it fetches what engines have written
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            over.set()

    loop.add_reader(0, read)
    launcher = make_launcher(task)
    ended: list[Any] = []

    def note_end(data: Any) -> None:
        ended.append(data)
        over.set()

    launcher.on_stop(note_end)
    try:
        await _maybe(launcher.start(task["n"]))
        read_so_far: dict[Path, int] = {}
        while not over.is_set():
            _pass_on(folder, read_so_far)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_S)
        _pass_on(folder, read_so_far)
        if ended:
            with contextlib.suppress(Exception):  # a launcher of a site's own
                print(launcher.get_output() or "", file=sys.stderr)
            print(f"{task['engines']} has ended: {ended[0]}", file=sys.stderr)
        return 1 if ended else 0
    finally:
        if not ended:
            try:
                await asyncio.wait_for(_maybe(launcher.stop()), STOP_S)
            except Exception as error:  # there may be nothing to stop yet
                print(f"stop: {type(error).__name__}: {error}", file=sys.stderr)


def make_launcher(task: Mapping[str, Any]) -> Any:
    """The launcher that a profile configures, starting our script instead of engines."""
    from ipyparallel.cluster.cluster import Cluster
    from IPython.paths import locate_profile

    if task["profile"]:
        locate_profile(task["profile"])  # else a name that is not there has no settings
    folder = Path(task["folder"])
    profile = {"profile": task["profile"]} if task["profile"] else {}
    cluster = Cluster(
        engines=task["engines"], load_profile=bool(task["profile"]), log_level=40, **profile
    )
    own = folder / "profile"
    for name in ("security", "log"):
        (own / name).mkdir(parents=True, exist_ok=True)
    command = ["/bin/sh", str(folder / "agent.sh")]
    launcher = cluster.engine_launcher_class(
        work_dir=str(folder),
        profile_dir=str(own),
        cluster_id=folder.name,
        config=cluster.config,
        log=cluster.log,
    )
    launcher.engine_cmd, launcher.engine_args = command, []
    if getattr(launcher, "engines", None) and hasattr(launcher, "to_send"):
        # ssh: it would send the files of a controller, which there is none of.
        launcher.engines = {
            host: {**(n if isinstance(n, dict) else {"n": n}), "to_send": []}
            for host, n in launcher.engines.items()
        }
    return launcher


def _pass_on(folder: Path, so_far: dict[Path, int]) -> None:
    """Print what agents have written since."""
    for path in sorted(folder.glob("agent-*.*")):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.seek(so_far.get(path, 0))
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            so_far[path] = so_far.get(path, 0) + len(whole)
            stream = sys.stdout if path.suffix == ".out" else sys.stderr
            stream.write(whole.decode(errors="replace"))
            stream.flush()


async def _maybe(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
