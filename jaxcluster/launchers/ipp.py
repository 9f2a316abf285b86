"""Agents by any of ipyparallel's engine launchers: PBS, SGE, LSF, HTCondor, a site's own.

They start ``engine_cmd``. Here that is a script in a folder that the hosts share. It
becomes an agent, and writes its lines beside itself. The launcher runs in another process
(``main``). It prints those lines, and stops the launcher when its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Self

from jaxcluster.errors import LauncherUnavailable
from jaxcluster.launchers.base import (
    NODES,
    NTASKS_PER_NODE,
    AgentOptions,
    Command,
    Launcher,
    LaunchPlan,
    agent_line,
)
from jaxcluster.options.table import TEXT, Field, Option
from jaxcluster.plan.shares import place_on
from jaxcluster.supervision.starting import ROOT

SCRIPT = "JAXCLUSTER_IPP_AGENT"  # in the environment: others see a command line, and secrets in it
LOOK_S = 0.1
STOP_S = 15.0  # qdel and its like may take a while


@dataclass(frozen=True)
class IPP(Launcher):
    """``--launcher ipp:NAME``, as ``ipcluster --engines`` knows it."""

    engines: str
    ipp_profile: str = ""
    nodes: int = 1  # ipyparallel's ``n``: one task of a batch template becomes one agent
    num_processes: int | None = None
    ntasks_per_node: int | None = None
    here: str = sys.executable  # for the launcher's process

    name = "ipp"
    start = "--launcher ipp:pbs"
    example = "%jaxcluster start --launcher ipp:pbs --ipp-profile NAME --nodes 2 -n 4"
    shares_folder = True
    takes = "one of ipyparallel's launchers"
    options = (
        Option("--ipp-profile", TEXT, "NAME", "an ipyparallel profile with its settings",
            "pbs -n 4", field=Field("Its profile", "An ipyparallel profile of yours", "default")),
        NODES, NTASKS_PER_NODE,
    )  # fmt: skip

    @classmethod
    def of(cls, given: dict[str, Any], num_processes: int | None, what: str = "") -> Self:
        return super().of({**given, "engines": what}, num_processes)

    def prepared(self, environ: Mapping[str, str]) -> IPP:
        known = {point.name for point in entry_points(group="ipyparallel.engine_launchers")}
        usable = sorted(known - {"jaxcluster"})  # our own local one
        if self.engines not in usable:
            raise LauncherUnavailable(
                f"ipyparallel has no engine launcher {self.engines!r}.",
                "It has: " + ", ".join(f"ipp:{name}" for name in usable),
            )
        return self

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        example = "--nodes 2 --ntasks-per-node 2"
        ranks = place_on(self.nodes, "agent", self.ntasks_per_node, self.num_processes, example)
        own = f"import sys; sys.path.append({ROOT!r})"
        source = f"{own}; from {__name__} import main; main(*sys.argv[1:])"
        command = Command(
            (self.here, "-P", "-c", source, folder, self.engines, self.ipp_profile,
             str(self.nodes)),
            tuple(range(self.nodes)), agent.python, env=((SCRIPT, script(agent, folder)),),
            keeps_stdin=True, stdin_s=STOP_S + 2, term_s=2.0,
        )  # fmt: skip
        note = f"{folder} must be a folder that the hosts share"
        notes = (note, f"each agent: {agent_line(agent)}")
        return LaunchPlan(self.name, self.nodes, (command,), (), ranks, notes=notes)

    def typed(self, command: Command) -> str:
        profile = f" --profile {self.ipp_profile}" if self.ipp_profile else ""
        return f"ipcluster start --engines {self.engines} -n 1{profile}"


def script(agent: AgentOptions, folder: str) -> str:
    """The script that ipyparallel starts in place of an engine. It ignores the engine's arguments.

    Each writes its own files: on NFS, hosts that append to one file lose lines.
    """
    mine = f"{shlex.quote(folder)}/agent-$(hostname)-$$"
    return f"#!/bin/sh\n{agent_line(agent)} >{mine}.out 2>{mine}.err </dev/null\n"


# ---------------------------------------------------------------------- the launcher's own process


def main(folder: str, engines: str, profile: str, n: str) -> None:
    """Start agents; end them when the input of this process ends."""
    try:
        sys.exit(asyncio.run(_serve(Path(folder), engines, profile, int(n))))
    except Exception as error:
        output = getattr(error, "output", None) or b""  # qsub's
        print(output.decode(errors="replace"), f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(1)


async def _serve(folder: Path, engines: str, profile: str, n: int) -> int:
    (folder / "agent.sh").write_text(os.environ.pop(SCRIPT))
    tempfile.tempdir = str(folder)  # it may be killed while it fetches what engines have written
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            over.set()

    def note_end(data: Any) -> None:
        ended.append(data)
        over.set()

    ended: list[Any] = []
    loop.add_signal_handler(signal.SIGTERM, over.set)  # a detached one's input does not end
    loop.add_reader(0, read)
    launcher = make_launcher(engines, profile, folder)
    launcher.on_stop(note_end)
    try:
        await _maybe(launcher.start(n))
        so_far: dict[Path, int] = {}
        while not over.is_set():
            _pass_on(folder, so_far)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), LOOK_S)
        _pass_on(folder, so_far)
        if ended:
            with contextlib.suppress(Exception):  # a launcher of a site's own
                print(launcher.get_output() or "", file=sys.stderr)
            print(f"{engines} has ended: {ended[0]}", file=sys.stderr)
        return 1 if ended else 0
    finally:
        if not ended:
            try:
                await asyncio.wait_for(_maybe(launcher.stop()), STOP_S)
            except Exception as error:  # there may be nothing to stop yet
                print(f"stop: {type(error).__name__}: {error}", file=sys.stderr)


def make_launcher(engines: str, profile: str, folder: Path) -> Any:
    """The launcher that a profile configures, starting our script instead of engines."""
    from ipyparallel.cluster.cluster import Cluster
    from IPython.paths import locate_profile

    if profile:
        locate_profile(profile)  # else a name that is not there has no settings
    named = {"profile": profile} if profile else {}
    cluster = Cluster(engines=engines, load_profile=bool(profile), log_level=40, **named)
    own = folder / "profile"
    for name in ("security", "log"):
        (own / name).mkdir(parents=True, exist_ok=True)
    launcher = cluster.engine_launcher_class(
        work_dir=str(folder), profile_dir=str(own), cluster_id=folder.name, config=cluster.config,
        log=cluster.log,
    )  # fmt: skip
    launcher.engine_cmd, launcher.engine_args = ["/bin/sh", str(folder / "agent.sh")], []
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
