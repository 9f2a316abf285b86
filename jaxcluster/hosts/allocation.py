"""A cluster's name and hosts. A launcher starts an agent on each host.

This machine is a host like others: its agent is a child of this process (``here``).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jaxcluster import wire
from jaxcluster.errors import LaunchError
from jaxcluster.host.processes import check_files
from jaxcluster.hosts import here
from jaxcluster.hosts.agent.requests import Detach, Mkdir, Remove
from jaxcluster.hosts.agent.transport import new_keys
from jaxcluster.hosts.fleet import Fleet, Host, lease_of
from jaxcluster.hosts.here import AgentHere, own_environment
from jaxcluster.hosts.placing import check_versions, in_order, place, share_out
from jaxcluster.hosts.processes import Processes
from jaxcluster.hosts.records import claims, registry
from jaxcluster.hosts.records.runtimefolder import VARIABLE, make_private, runtime_root
from jaxcluster.launchers.base import AgentOptions, Launcher, describe, launcher_of
from jaxcluster.launchers.commands import Launch, StartedAgent
from jaxcluster.launchers.failures import Reason
from jaxcluster.supervision.starting import import_time_settings
from jaxcluster.text import join_words, shown_value, without_secrets
from jaxcluster.wire.forks import OUTLIVING, RANKS, Preload

LAUNCH = "launch"  # how the names of folders of launches begin
SHARED_DIR = "JAXCLUSTER_SHARED_DIR"  # a folder that the hosts share, where the home is not
ASK_S = 10.0
Say = Callable[[str], None]


def launcher_for(spec: wire.ClusterSpec, owner_key: str = "KEY") -> tuple[Launcher, AgentOptions]:
    """(what starts the agents of a cluster of hosts, what they are started with).

    Raises:
      UsageError: an option is not one of this launcher's.
    """
    launcher, python = launcher_of(spec.launcher, dict(spec.options), spec.num_processes or None)
    assert launcher is not None
    # Agents and fork servers read these when they start. All else goes encrypted to the ranks.
    env = {name: spec.env[name] for name in (VARIABLE,) if name in spec.env}
    env |= import_time_settings(spec.env)
    first_lease_s = spec.timeout_s + 60.0  # the first agent waits for the last one
    return launcher, AgentOptions(
        spec.name, owner_key, python or sys.executable, lease_of(spec), tuple(env.items()),
        first_lease_s,
    )  # fmt: skip


def dry_run(spec: wire.ClusterSpec) -> str:
    """The commands and files that would start the agents of a cluster of hosts."""
    launcher, agent = launcher_for(spec, "PUBLIC-KEY")
    launcher = launcher.prepared(os.environ)
    folder = runtime_root() / spec.name / LAUNCH
    if launcher.shares_folder:
        folder = _shared_root() / f"{spec.name}-XXXX"
    plan = without_secrets(describe(launcher.render(agent, str(folder))))
    platform = spec.platform or "that of the hosts' devices"
    if spec.devices_per_process is not None:
        each = spec.devices_per_process
        platform += f", {each} devices each" if each else ", all of a host's devices for its ranks"
    where = spec.coordinator_address or spec.coordinator_bind_address
    where = where or "on the first host, on a free port; with one host, on a Unix socket"
    lines = [plan, f"then each agent starts its ranks; platform: {platform}"]
    lines.append(f"JAX's coordinator: {where}")
    if spec.env:
        lines.append("environment of every rank, added to its host's own (sent encrypted):")
        lines += [f"  {name}={shown_value(name, value)}" for name, value in spec.env.items()]
    return "\n".join(lines)


def _shared_root() -> Path:
    """The folder that launchers share with their hosts; several users may share it."""
    if chosen := os.environ.get(SHARED_DIR):
        return Path(os.path.abspath(chosen)) / f"jaxcluster-{os.getuid()}"
    return Path.home() / ".jaxcluster" / LAUNCH


class Allocation:
    """One cluster's name and hosts. Both outlive the ranks.

    A restart starts new ranks on it, and nobody else gets the name or the hosts meanwhile.

    Args:
      claim: on the cluster's name.

    Attributes:
      fleet: the hosts, once they are there.
      spent: why no new processes can be started on it; "" while nobody knows better.
    """

    def __init__(self, claim: claims.Claim) -> None:
        self.claim, self.spent = claim, ""
        self.folder = registry.folder(claim.name)
        self.fleet: Fleet | None = None
        self._counts: Sequence[int] | None = None  # the first ranks of each host, where known
        self._is_detached = False
        self._platform: str | None = None
        self._launch: Launch | None = None
        self._files: Path | None = None  # the folder of the launch

    def take(self, claim: claims.Claim) -> None:
        """Go on under another claim, since the folder of the first one is gone.

        The agents stay, and so does what ranks have saved on their hosts. Their tunnels' sockets
        went with the folder: what is connected stays so, and nobody else can attach.
        """
        self.claim.let_go()
        self.claim, self.folder = claim, registry.folder(claim.name)
        if self._files is not None:  # a successor's tunnel has its socket there
            self._files.mkdir(parents=True, mode=0o700, exist_ok=True)

    def prepare(
        self, spec: wire.ClusterSpec, say: Say, timeout_s: float, stopped: threading.Event
    ) -> Processes:
        """Have the hosts' fork servers come up, and lay out a generation of ranks.

        Args:
          stopped: ends it when it is set, also while a job or a slice waits in a queue.

        Raises:
          LaunchError: an agent did not start, the hosts' versions differ, or so many ranks need
            more file descriptors.
        """
        deadline = time.monotonic() + timeout_s
        if spec.is_here:
            say(f"starting {spec.num_processes} processes ...")
            check_files(spec.num_processes)
            fleet = self._here({**own_environment(), **spec.env}, deadline, stopped)
            self._counts = [spec.num_processes]
        elif self.fleet is None:
            fleet = self._bring_up(spec, say, deadline, stopped)
        else:
            fleet = self._bring_back(self.fleet, say, deadline, stopped)
        shares, counts = [host.share for host in fleet.hosts], self._counts
        if any(shares):
            counts = share_out(spec.num_processes, shares)
        placed = place(spec, fleet.hosts, counts)
        if not any(shares):
            for host in fleet.hosts:
                host.share = len(host.ranks)
        self._platform = placed.platform
        say(f"starting {placed.num_processes} processes ...")
        return Processes(placed, fleet)

    def _here(self, env: Mapping[str, str], deadline: float, stopped: threading.Event) -> Fleet:
        """This machine, with an agent whose fork server has imported all in its environment.

        One that there is may be about to end: then there is another.
        """
        with contextlib.suppress(LaunchError):
            if self.fleet is None and (idle := here.take_idle(env)) is not None:
                self._use(idle)
            if self.fleet is not None and self.fleet.there:
                self.fleet.hosts[0].ask(Preload(env), ASK_S)
                return self.fleet
        self._give_hosts_back()
        fleet = self._use(here.started(env, deadline - time.monotonic(), stopped))
        fleet.hosts[0].ask(Preload(env), ASK_S)
        return fleet

    def _use(self, agent: AgentHere) -> Fleet:
        """Connect to an agent of this machine."""
        self._launch = agent
        self.fleet = Fleet(agent.keys, is_here=True)
        agent.on_end = self.fleet.ended
        if not agent.alive:  # it had ended before anybody was to hear of that
            self.fleet.ended([0], Reason("The agent of this machine has ended.", has_ended=True))
        self.fleet.add([(socket.gethostname(), agent.agent)])
        return self.fleet

    def _bring_up(
        self,
        spec: wire.ClusterSpec,
        say: Say,
        deadline: float,
        stopped: threading.Event,
        check: bool = True,
    ) -> Fleet:
        keys = new_keys()
        launcher, agent = launcher_for(spec, keys.public)
        launcher = launcher.prepared(os.environ)
        folder = self._files = self._launch_folder(launcher)
        plan = launcher.render(agent, str(folder))
        self._counts = plan.ranks
        check_files(0, plan.num_hosts)
        fleet = Fleet(keys, lease_s=agent.lease_s)
        self._launch = launcher.launch(
            plan, on_end=fleet.ended, folder=self.folder,
            shared=folder if launcher.shares_folder else None,
            kept_open=[self.claim.descriptor], outlives=spec.detach,
        )  # fmt: skip
        try:
            left_s = max(1.0, deadline - time.monotonic())
            say(f"starting agents on {plan.num_hosts} hosts ...")
            started = self._launch.start(left_s, lambda text: say(f"agents: {text}"), stopped)
            named = in_order(started, plan.hosts)
            if check:
                check_versions(named)
            fleet.add(named, self._launch.explain)
        except BaseException:
            fleet.close()
            raise
        self.fleet = fleet
        return fleet

    def _bring_back(
        self, fleet: Fleet, say: Say, deadline: float, stopped: threading.Event
    ) -> Fleet:
        """Start another agent for each host that is lost. On the host it first ends the remains of
        the old agent, and waits for that. Otherwise two would share a GPU or TPU."""
        self.spent = ""
        for lost, start in self._successors():
            say(f"waiting for another agent on host {lost.name} ...")
            fleet.replace(lost, start(max(1.0, deadline - time.monotonic()), stopped))
        return fleet

    def check_returns(self) -> None:
        """Whether there can be new processes on all hosts: before the old ones are ended for them.

        Raises:
          LaunchError: a host is lost, and there is no way to another.
        """
        if self.fleet is not None and not self.fleet.is_here:
            self._successors()

    def _successors(self) -> list[tuple[Host, Callable[..., StartedAgent]]]:
        """The lost hosts that have ranks, each with what starts another agent there.

        The other lost ones are not needed any more.
        """
        assert self.fleet is not None and self._launch is not None
        self.fleet.leave_out([one for one in self.fleet.lost if not one.ranks])
        found = []
        for lost in self.fleet.lost:
            if (start := self._launch.successor(lost.number, lost.name)) is None:
                told = f"ost {lost.name} is lost ({lost.lost}), and its launcher can't replace it"
                self.spent = f"h{told}"
                offer = f"{self.offer}. Or: " if self.offer else ""
                raise LaunchError(
                    f"H{told}.",
                    f"{offer}%jaxcluster stop, then start again with the hosts that are up.",
                )
            found.append((lost, start))
        return found

    @property
    def offer(self) -> str:
        """The command that goes on without lost hosts; "" if there is none."""
        there, lost = (self.fleet.there, self.fleet.lost) if self.fleet is not None else ([], [])
        if not there or not lost or self._platform == "tpu":  # a slice's hosts belong together
            return ""
        num_ranks = max(len(there), sum(len(host.ranks) for host in there))
        where = f"{'host' if len(there) == 1 else 'hosts'} {join_words([h.name for h in there])}"
        return f"%jaxcluster restart -n {num_ranks} goes on with what is left, {where}"

    def leave_out_lost(self) -> None:
        """Go on without the hosts that are lost."""
        if self.fleet is not None:
            self.fleet.leave_out(self.fleet.lost)

    def _launch_folder(self, launcher: Launcher) -> Path:
        """The folder of a launch's files. Anyone who can write to it can pose as an agent."""
        if not launcher.shares_folder:
            # The next cluster of the name has another.
            own = self.folder / f"{LAUNCH}-{self.claim.id[:6]}"
            own.mkdir(mode=0o700, exist_ok=True)
            return own
        root = _shared_root()
        hint = f"Name another: {SHARED_DIR}=/path in the notebook's environment"
        make_private(root, "the folder that you share with the hosts", hint)
        return Path(tempfile.mkdtemp(prefix=f"{self.claim.name}-", dir=root))

    def keep(self) -> None:
        """Have it live on, before its ranks end for others to come."""
        if self._is_detached and self.fleet is not None:
            with contextlib.suppress(LaunchError):
                self.fleet.command(Detach(False), ASK_S)

    def clear(self) -> None:
        """After the end of its ranks: what they have left goes, for the next ones."""
        if self.claim.is_held:
            self.claim.empty()
        if self.fleet is not None:
            self.fleet.on_event = None
            for request in (Remove(RANKS), Mkdir(RANKS)):
                self.fleet.command(request, ASK_S, LaunchError)

    def detach(self) -> None:
        """Have its ranks, and what has started them, outlive this process.

        Raises:
          LaunchError: an agent does not answer.
        """
        assert self.fleet is not None and self._launch is not None
        found_by = [str(self.folder / registry.ALIVE)] if self.fleet.is_here else []
        self.fleet.command(Detach(True, found_by))
        self._launch.detach([self.folder])  # by which others find it
        self._is_detached = True

    def let_go(self) -> None:
        """Take no part in it any more. Its ranks may run on, detached."""
        if self._launch is not None:
            self._launch.leave()
        self.fleet = self._launch = None
        self.claim.let_go()

    def _give_hosts_back(self) -> None:
        """End the agents. One of this machine may wait for the next cluster."""
        fleet, launch = self.fleet, self._launch
        self.fleet = self._launch = None
        is_kept = False
        if isinstance(launch, AgentHere) and fleet is not None and fleet.there:
            is_kept = not self._is_detached and here.keep_idle(launch)
        if fleet is not None:
            fleet.on_event = None
            if is_kept:
                for name in (RANKS, *OUTLIVING):
                    fleet.command(Remove(name), ASK_S, LaunchError)
                fleet.close()
            else:
                fleet.quit()
        if launch is not None and not is_kept:
            launch.stop()

    def end(self) -> None:
        """Give everything back."""
        self.claim.remove()
        self._give_hosts_back()
        if self._files is not None:
            shutil.rmtree(self._files, ignore_errors=True)


def examine(
    spec: wire.ClusterSpec, look: Callable[[Sequence[Host]], str], say: Say, timeout_s: float
) -> str:
    """The answer of ``look`` about a launcher's hosts, with an agent on each and no rank.

    Raises:
      LaunchError: an agent did not come up.
    """
    claim = claims.claim(f"doctor-{secrets.token_hex(4)}")
    assert claim is not None  # nobody else's name
    allocation = Allocation(claim)
    try:
        spec, deadline = replace(spec, name=claim.name), time.monotonic() + timeout_s
        allocation._bring_up(spec, say, deadline, threading.Event(), check=False)
        assert allocation.fleet is not None
        return look(allocation.fleet.hosts)
    finally:
        allocation.end()
