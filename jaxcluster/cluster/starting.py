"""From a spec to a world: the steps of a start, and its end where one fails."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import quote

from jaxcluster import wire
from jaxcluster.cluster import events
from jaxcluster.cluster.events import Progress
from jaxcluster.cluster.world import World
from jaxcluster.errors import (
    CellInterrupted,
    ClusterExists,
    EnginesMissing,
    InitializeFailed,
    JaxClusterError,
    LaunchError,
    PlanError,
)
from jaxcluster.host.facts import engine_facts, host_gpus
from jaxcluster.hosts import allocation as hosts
from jaxcluster.hosts.agent import folder as folders
from jaxcluster.hosts.allocation import Allocation
from jaxcluster.hosts.fleet import LOOPBACK
from jaxcluster.hosts.records import claims, registry
from jaxcluster.hosts.records.runtimefolder import runtime_root
from jaxcluster.hosts.ways import own_addresses
from jaxcluster.launchers.base import STOPPED
from jaxcluster.plan import placement, versions
from jaxcluster.plan.spec import UNIX
from jaxcluster.ranks import name_ranks
from jaxcluster.supervision.processes import pid_space, process_token
from jaxcluster.wire.forks import RANKS
from jaxcluster.wire.link import Event
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.start import Facts, Script, Serve

R = TypeVar("R")

COORDINATOR_SOCKET = "jax.sock"  # in the folder of a cluster on one host

STEPS: dict[str, events.StartStep] = {
    "facts": "up",
    "initialize": "initialized",
    "serve": "ready",
}  # by what a rank was asked

LEAST_S, LOOK_S = 0.2, 0.01
LOG_LINES = 12  # of the end of such a log

one_at_a_time = threading.Lock()  # held by the one start of this process that goes on


@dataclass(eq=False)
class Starting:
    """A start of ranks: its steps, each within the rest of the time.

    Attributes:
      spec: the options of the cluster.
      say: called with a line for each step.
      allocation: what the ranks are to run on, where there is one: it is kept if this fails.
      script: what they run, in place of cells.
      stopped: ends it at its next wait, once another thread sets it.
      is_restart: they are new processes of a cluster that there was.
      began: when, in milliseconds since 1970.
      steps: how far each rank has come that has been heard of.
      failure: why it has failed; "" while it goes on.
      world: the ranks, once their processes are about to start.
    """

    spec: wire.ClusterSpec
    say: Progress
    allocation: Allocation | None = None
    script: Script | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    steps: dict[int, events.StartStep] = field(default_factory=dict)
    failure: str = ""
    world: World | None = None

    def __post_init__(self) -> None:
        self.is_restart = self.allocation is not None
        self.began = time.time_ns() // 1_000_000
        self._deadline = time.perf_counter() + self.spec.timeout_s
        self._has_begun = False  # the script, whose processes may end

    @property
    def left_s(self) -> float:
        return max(0.1, self._deadline - time.perf_counter())

    def run(self) -> World:
        """Take all steps; returns the ranks, whose record is saved."""
        if self.spec.is_here and self.spec.platform != "cpu":
            plan_here(self.spec)  # no process is needed to see that there are no such devices
        folders.sweep(folders.root())
        claims.tidy()
        if self.allocation is None:
            self.spec, claimed = claim(self.spec)
            self.allocation = Allocation(claimed)
        elif not self.allocation.claim.is_held:  # its folder is gone
            self.spec, claimed = claim(self.spec)
            self.allocation.take(claimed)
        processes = self.allocation.prepare(self.spec, self.say, self.left_s, self.stopped)
        spec = self.spec = processes.spec
        world = self.world = World(processes, self.allocation)
        world.on_stopping = self.stopped.set
        world.listen()
        ranks = range(spec.num_processes)
        pids = processes.start(are_scripts=self.script is not None)
        facts = self._ask(dict.fromkeys(ranks, Facts()), "did not start")
        if why := versions.too_old(said.jax for said in facts):
            raise LaunchError(*why)
        plan, coordinator_pid = self._plan(world, facts)
        self.say(f"initializing JAX on {spec.num_processes} processes ...")
        each = {request.process_id: request for request in plan.requests}
        devices = self._ask(each, "did not initialize JAX", InitializeFailed)
        if not self.is_restart:  # they are said once of a cluster
            of_version = versions.note_on(facts[0].jax, devices[0].moved)
            for note in filter(None, [*plan.notes, of_version]):
                print(f"Note: {note}.", file=sys.stderr)
        if self.script is None:
            self.say("connecting engines ...")
            serve = Serve(processes.engine_file(self.left_s, self._check))
            self._ask(dict.fromkeys(ranks, serve), "did not become an ipyparallel engine")
        else:
            # Some may have ended before others have begun: that is the script's end.
            self._has_begun = True
            self._ask(dict.fromkeys(ranks, self.script), "did not begin the script")
            world.link.close()
        record = registry.ClusterRecord(
            name=spec.name,
            spec=spec,
            owner="" if spec.detach else process_token(os.getpid()),
            created_ns=time.time_ns(),
            hostname=socket.gethostname(),
            pids=pids,
            facts=facts,
            devices=devices,
            notebook=os.environ.get("JPY_SESSION_NAME", ""),
            coordinator_pid=coordinator_pid,
            claim=self.allocation.claim.id,
            pid_space=pid_space(),
            hosts=processes.fleet.records(),
            keys=asdict(processes.fleet.keys),
        )
        if self.script is None:  # else there is nothing to attach to
            registry.write(record)
        if spec.detach:
            self.allocation.detach()
        world.settle(record)
        return world

    def _plan(self, world: World, facts: list[wire.EngineFacts]) -> tuple[placement.RankPlan, int]:
        """Find the ways between the ranks, lay them out, and start the referee beside them.

        Returns: the plan, and the pid of the referee's process.
        """
        own = own_addresses(world.fleet.hosts)
        address, chosen = own[0], chosen_address(self.spec)
        # The referee runs beside the ranks, and JAX's coordination service with it. So rank 0 may
        # die as well.
        #
        # Whoever reaches the coordinator can end ranks, and it asks nobody who he is: on one host
        # it listens on a Unix socket in the cluster's folder, which only this user can enter.
        host = f"[{address}]" if ":" in address else address
        service = f"{host}:0"
        relays = "" if address == LOOPBACK else address
        key = secrets.token_hex(32) if relays else ""
        if not (relays or chosen):  # gRPC reads it as a URI
            service = UNIX + quote(f"{world.fleet.hosts[0].folder}/{RANKS}/{COORDINATOR_SOCKET}")
        pid = world.processes.start_coordinator(chosen or service, relays, key)
        relay_port, port = self._ports(world) if relays else (0, 0)
        if port:
            service = f"{host}:{port}"
        plan = placement.plan_ranks(
            self.spec,
            facts,
            coordinator=service,
            collectives_addresses=own,
        )
        paths = world.processes.referee_paths(relays, relay_port, key)
        is_checked = os.environ.get("JAXCLUSTER_AGREE") != "0"
        requests = tuple(
            replace(request, referee=paths[request.process_id], is_checked=is_checked)
            for request in plan.requests
        )
        return replace(plan, requests=requests), pid

    def _ports(self, world: World) -> tuple[int, int]:
        """The ports of the referee, for other hosts, and of JAX's service, by their log."""
        while self.left_s > LEAST_S:
            self._check()
            if found := re.search(r"^ports: (\d+) (\d+)$", world.log_end("coordinator"), re.M):
                return int(found[1]), int(found[2])
            time.sleep(LOOK_S)
        raise LaunchError("The coordinator did not start in time.", "%jaxcluster doctor")

    def _ask(
        self,
        each: Mapping[int, Operation[R]],
        what: str,
        error: type[EnginesMissing | InitializeFailed] = EnginesMissing,
    ) -> list[R]:
        """Ask all ranks for one step. The first that fails or dies ends the start.

        Args:
          each: what each rank is asked.
          what: what a rank did not do, where it fails.
        """
        assert self.world is not None
        world, found = self.world, dict[int, R]()

        def take(event: Event[R]) -> None:
            self._check()
            if event.op != "reply" and not (self._has_begun and event.op == "died"):
                told, hint = f"Rank {event.rank} {what}:", getattr(event.body, "hint", "")
                if hint:  # an error of ours, which says all
                    raise error(f"{told} {event.why}", hint, [event.rank])
                raise error(
                    f"{told} {event.ename} {event.why}\n{log_of(world, event.rank)}",
                    "%jaxcluster doctor checks this machine.",
                    [event.rank],
                )
            found[event.rank] = event.body
            if (step := STEPS.get(each[event.rank].op)) is not None:
                self.steps[event.rank] = step
                events.tell()
            if isinstance(each[event.rank], Facts):
                self.say(f"engines {len(found)}/{len(each)}")

        world.link.gather(each, each, timeout_s=self.left_s, check=self._check, on_answer=take)
        if missing := sorted(set(each) - set(found)):
            cpus = os.cpu_count() or 1
            fewer = f", or start -n {cpus}" if self.spec.is_here and len(each) > cpus else ""
            raise error(
                f"{name_ranks(missing).capitalize()} {what} within {self.spec.timeout_s:g} s. "
                + log_of(world, missing[0]),
                f"Wait longer: %jaxcluster start --timeout {2 * self.spec.timeout_s:g}{fewer}",
                missing,
            )
        return [found[rank] for rank in sorted(found)]

    def _check(self) -> None:
        """Raises LaunchError where it was stopped, or something has ended that it needs."""
        if self.stopped.is_set():
            raise LaunchError(STOPPED)
        if (world := self.world) is None:
            return
        for role in ("controller", "coordinator"):
            if why := getattr(world, f"{role}_died"):
                log = "\n".join(world.log_end(role).splitlines()[-LOG_LINES:])
                raise LaunchError(f"The {role} ended ({why}).\n{log}")
        if world.dead and not self._has_begun:
            rank, death = min(world.dead.items())
            raise EnginesMissing(
                f"{name_ranks(world.dead).capitalize()} died while the cluster started "
                f"({death.why}). {log_of(world, rank)}",
                "%jaxcluster doctor checks this machine.",
                sorted(world.dead),
            )


def claim(spec: wire.ClusterSpec) -> tuple[wire.ClusterSpec, claims.Claim]:
    """The cluster's name for this process; where the user gave none, the next that is free.

    Raises:
      ClusterExists: somebody else has it.
    """
    others = (f"main-{i}" if i > 1 else "main" for i in itertools.count(1))
    for name in itertools.chain([registry.check_name(spec.name)], others if spec.any_name else ()):
        if (claimed := claims.claim(name)) is not None:
            return replace(spec, name=name), claimed
    attach = f"%jaxcluster attach {spec.name} connects to it"
    another = "%jaxcluster start --name NAME starts another."
    if any(record.name == spec.name for record in registry.records()):
        told = f"Cluster {spec.name!r} is already running."
        raise ClusterExists(told, f"{attach}, %jaxcluster stop {spec.name} ends it, and {another}")
    if (holder := claims.read_holder(registry.folder(spec.name))) is not None:
        by = f"process {holder.owner.partition(':')[0]} on {holder.hostname}"
        told = f"Cluster {spec.name!r} is being started, by {by}."
        raise ClusterExists(told, f"{attach} once it runs; {another}")
    raise ClusterExists(
        f"{registry.folder(spec.name)} already exists, and may not be a cluster's folder.",
        "Remove it if it is not needed, or: %jaxcluster start --name NAME",
    )


def log_of(world: World, rank: int) -> str:
    """The end of a rank's log, for a message."""
    return world.log_excerpt(rank) or f"The log of rank {rank} is empty."


def dry_run(spec: wire.ClusterSpec) -> str:
    """A start's plan: the processes and, for this host, the devices of the ranks."""
    if not spec.is_here:
        return hosts.dry_run(spec)
    coordinator = f"{UNIX}<a folder of this machine's agent>/{COORDINATOR_SOCKET}"
    if chosen_address(spec):
        coordinator = f"{LOOPBACK}:<a free port>"
    head = (
        f"{spec.num_processes} ranks on this machine, forked from one preloaded process\n"
        f"folders: {runtime_root()}\n"
    )
    try:
        return head + placement.describe_plan(plan_here(spec, coordinator))
    except PlanError as error:
        return head + str(error)


def chosen_address(spec: wire.ClusterSpec) -> str | None:
    """The address at which JAX's coordinator listens, if the user has chosen one."""
    return spec.coordinator_bind_address or spec.coordinator_address


def plan_here(
    spec: wire.ClusterSpec, coordinator: str = f"{LOOPBACK}:<port>"
) -> placement.RankPlan:
    """How the ranks would lie on this machine's devices, as far as it can tell without any.

    Raises:
      PlanError: they can't be laid out on them.
    """
    here = replace(engine_facts(0), gpus=host_gpus({**os.environ, **spec.env}))
    return placement.plan_ranks(
        spec,
        [replace(here, rank=rank) for rank in range(spec.num_processes)],
        coordinator=coordinator,
        collectives_addresses=[LOOPBACK] * spec.num_processes,
    )


def is_starting() -> bool:
    """Whether a thread of this process starts a cluster, or gives one new processes."""
    return one_at_a_time.locked()


def start_world(spec: wire.ClusterSpec, say: Progress, **more: Any) -> World:
    """Start what ``spec`` describes; returns its ranks. ``more`` are attributes of ``Starting``."""
    began = time.perf_counter()
    starting = events.course = Starting(spec, say, **more)
    events.tell()
    try:
        world = starting.run()
    except BaseException as error:
        if starting.world is not None:
            starting.world.stop()
        if starting.allocation is not None:
            starting.allocation.clear() if starting.is_restart else starting.allocation.end()
        if type(error) is KeyboardInterrupt:
            raise CellInterrupted(STOPPED) from None
        if isinstance(error, OSError):  # a full disk, a home directory without access
            error = LaunchError(
                f"The cluster could not be started: {error}.",
                "%jaxcluster doctor checks this machine.",
            )
        is_told = starting.is_restart or starting.stopped.is_set()
        if isinstance(error, JaxClusterError) and not is_told:
            starting.failure = str(error)
        raise error from None
    finally:
        if not starting.failure and events.course is starting:
            events.course = None
        events.tell()
    world.started_s = time.perf_counter() - began
    return world
