"""The clusters of this process: started, attached to, found, stopped. The last one is current."""

from __future__ import annotations

import atexit
import os
import socket
import time
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster import events, handle, recovery
from jaxcluster.cluster.events import Progress
from jaxcluster.cluster.handle import Cluster
from jaxcluster.cluster.spec import make_spec
from jaxcluster.cluster.starting import one_at_a_time, start_world
from jaxcluster.cluster.world import World
from jaxcluster.errors import ClusterExists, LaunchError, NoCluster, UsageError, VersionMismatch
from jaxcluster.hosts.fleet import Fleet, unreachable
from jaxcluster.hosts.processes import Processes
from jaxcluster.hosts.records import claims, registry
from jaxcluster.launchers import base as launchers
from jaxcluster.plan import repeated_start
from jaxcluster.ranks import name_ranks
from jaxcluster.text import plural
from jaxcluster.wire import forks

EXITS_S = 5.0  # for agents to say which processes have ended


def start(num_processes: int | None = None, **options: Any) -> Cluster:
    """Start a cluster and return it when all its ranks are ready.

    Args:
      num_processes: how many ranks. Default: one for each GPU or TPU chip here, else 2 on CPU.
      **options: as ``make_spec`` takes them, with the names of ``jax.distributed.initialize``.

    Raises:
      LaunchError: it did not come up within ``timeout_s``; nothing is left running.
    """
    return start_spec(make_spec(num_processes, **options))


def start_spec(spec: wire.ClusterSpec, progress: Progress | None = None) -> Cluster:
    """Start what ``spec`` describes. ``progress`` gets a line for each step."""
    with one_at_a_time:
        return _start(spec, progress)


def _start(spec: wire.ClusterSpec, progress: Progress | None) -> Cluster:
    with events.going_on(progress) as say:
        known = handle.opened.get(spec.name)
        if known is not None and known.why and not spec.any_name:
            raise ClusterExists(known.down)
        started = Cluster(start_world(spec, say))
        handle.opened[started.name] = started
    return started


def start_once(spec: wire.ClusterSpec, progress: Progress | None = None) -> str:
    """Start a cluster, or find the one that an earlier run of the same cell has started.

    It finds a cluster by its name, or the only one if no name is given. Returns a line that says
    what was started or found. A second line is that of ``offer``.

    Raises:
      ClusterExists: there is one, with other options.
    """
    with one_at_a_time:
        _leave_ended()
        known = _meant(spec)
        if known is not None and is_outdated(known):
            known = attach(known.name)
        if known is None:
            return "\n".join(filter(None, [_start(spec, progress).summary(), offer(spec)]))
    if known.why:
        raise ClusterExists(known.down)
    if not repeated_start.are_alike(known.spec, spec):
        raise ClusterExists(
            f"Cluster {known.name!r} is already running, with other options: "
            f"{repeated_start.typed(known.spec)}. It was not changed.",
            f"To replace it: %jaxcluster stop {known.name}, then this start again. %jaxcluster "
            "restart gives it new processes with the old options; -n N changes their number. "
            "%jaxcluster start --name NAME starts a second one.",
        )
    ranks = plural(known.num_processes, "rank")
    if known.is_restarting:
        return f"Cluster {known.name!r} is being restarted ({ranks})."
    said = f"Cluster {known.name!r} is already running ({ranks}, variables kept)."
    if lost := recovery.tell_losses(known):
        said += f" {lost}"
    if (used := current().name) != known.name:
        said += f" This notebook uses {used!r}. To use this one: %jaxcluster attach {known.name}"
    return said


def offer(spec: wire.ClusterSpec) -> str:
    """A line on the allocation that a start without ``--launcher`` has not taken; else ""."""
    found = launchers.find() if spec.any_launcher else None
    return found.offer if found is not None else ""


def _leave_ended() -> None:
    """Let go of clusters that have ended with the notebook that had started them."""
    for one in connected().values():
        # Its ranks die one after the other, and all of them without their notebook.
        # While its notebook gives it new processes it has no record, and then another one.
        if one.dead and not one.owned and not claims.holds(one.name, one.record.claim):
            one.close()


def _meant(spec: wire.ClusterSpec) -> Cluster | None:
    """The cluster that a start means: this process's, or one that was detached by an earlier one.

    A name means the cluster of that name, started here or elsewhere.
    """
    ours = connected()
    if not spec.any_name and spec.name in ours:
        return ours[spec.name]
    if spec.any_name and ours:
        unnamed = [one for one in ours.values() if one.spec.any_name]
        return (unnamed or list(ours.values()))[-1]
    notebook = os.environ.get("JPY_SESSION_NAME")
    for record in live_records() if spec.detach else ():
        is_meant = record.name == spec.name
        if spec.any_name:
            is_meant = record.spec.any_name and bool(notebook) and record.notebook == notebook
        if is_meant and not record.owner and repeated_start.are_alike(record.spec, spec):
            return attach(record.name)
    return None


def attach(name: str | None = None) -> Cluster:
    """Connect to a cluster that another notebook or a shell on this machine has started.

    It is not stopped when this process ends. Cells of all notebooks on it take turns.

    Args:
      name: which; None takes the only one there is.

    Raises:
      NoCluster: there is none (of that name).
      UsageError: there are several and none was named.
      LaunchError: none of its hosts answers.
    """
    _leave_ended()
    living = live_records()
    if name is None and len(living) > 1:
        names = ", ".join(record.name for record in living)
        how = "%jaxcluster attach NAME; in a shell: jaxcluster stop NAME"
        raise UsageError(f"Several clusters are running: {names}.", how)
    if name is None:
        name = living[0].name if living else "main"
    found = connected().get(name)
    if found is not None and is_outdated(found):
        found.close()
        found = None
    if found is None:
        is_there = not registry.is_name(name) or any(r.name == name for r in registry.records())
        if not is_there and claims.life(name) is claims.Life.ALIVE:
            raise NoCluster(
                f"Cluster {name!r} is being started.", f"In a moment: %jaxcluster attach {name}"
            )
        found = connect(registry.read(name))
    handle.opened.pop(name, None)
    handle.opened[name] = found  # the last one is current
    events.tell()
    return found


def listed() -> tuple[list[registry.ClusterRecord], dict[str, list[str]]]:
    """(this user's running clusters, by name the hosts of theirs that can't be reached).

    Remains of dead ones are removed; one whose host can't be reached may live. Takes 2 s for each
    of them.
    """
    claims.tidy()
    records = live_records()
    return records, {record.name: unreachable(record) for record in records}


def is_outdated(known: Cluster) -> bool:
    """Whether its ranks are lost to this process, and there may be others by now."""
    return known.world.is_broken and not known.world.is_ours


def connect(record: registry.ClusterRecord) -> Cluster:
    """A connection to a running cluster, which does not become the current one.

    Raises:
      VersionMismatch: it was started by another version of jaxcluster.
      LaunchError: its hosts' agents are gone.
      NoCluster: it runs where it can't be reached from here.
    """
    if record.protocol != wire.PROTOCOL_VERSION:
        raise VersionMismatch(
            f"Cluster {record.name!r} was started by another version of jaxcluster (protocol "
            f"{record.protocol}, here {wire.PROTOCOL_VERSION}).",
            "Attach with the version that started it, or stop it there and start another.",
        )
    # Unix sockets are another machine's, where several share the folder; ports are not.
    if record.spec.is_here or any(not h.endpoint.startswith("tcp://") for h in record.hosts):
        _check_is_here(record)
    cluster = Cluster(World(Processes(record.spec, Fleet.joined(record), record), record=record))
    try:
        cluster.world.fleet.command(forks.Exits(), EXITS_S)  # those before this process came
        cluster.status()  # they are taken in meanwhile
    except BaseException:
        cluster.close()
        raise
    return cluster


def _check_is_here(record: registry.ClusterRecord) -> None:
    """Raises NoCluster of a cluster that may live somewhere else."""
    if claims.life(record.name) is claims.Life.UNKNOWN:
        raise NoCluster(
            f"Cluster {record.name!r} was started on host {record.hostname} and can't be reached "
            f"from here ({socket.gethostname()}).",
            f"There: jaxcluster stop {record.name}   or   %jaxcluster attach {record.name}",
        )


def stop_by_name(name: str, say_next: bool = True, force: bool = False) -> str:
    """Stop a cluster of any process; returns a line: what ended, and which cluster is used now.

    Args:
      force: see ``Cluster.stop``.

    Raises:
      NoCluster: there is none of that name.
    """
    known: Cluster | None = handle.opened.get(name)  # one without processes has no record
    record = known.record if known is not None else registry.read(name, "stop")
    is_used, began = known in [*connected().values()][-1:], time.perf_counter()
    try:
        (known or connect(record)).stop(force)
    except (NoCluster, LaunchError):  # what is left of it
        if known is not None:
            raise
        _check_is_here(record)
        if not force and claims.life(name) is not claims.Life.DEAD:
            raise  # a host that can't be reached is not known to have ended
        claims.remove(record.name, record.claim)
        events.tell()
    ranks, took = name_ranks(range(record.spec.num_processes)), time.perf_counter() - began
    said = f"Stopped {ranks} of {name!r} in {took:.1f} s."
    if say_next and is_used and (others := connected()):
        said += f" Cells of this notebook now run on {next(reversed(others))!r}."
    return said


def current() -> Cluster:
    """The cluster that this process started or attached to last.

    Raises:
      NoCluster: there is none.
    """
    ours = connected()
    if not ours:
        others = ", ".join(record.name for record in live_records())
        raise NoCluster(
            " ".join([*handle.told_of_ends, "No cluster is connected to this notebook."]),
            f"%jaxcluster attach connects to a running one ({others})."
            if others
            else "Start one: %jaxcluster start -n 4",
        )
    return next(reversed(ours.values()))


def live_records() -> list[registry.ClusterRecord]:
    """The running clusters of this user.

    One that can't be judged from here is among them: it may run on another host.
    """
    return [r for r in registry.records() if claims.life(r.name) is not claims.Life.DEAD]


def connected() -> dict[str, Cluster]:
    """The clusters that this process started or attached to, by name; the current one is last."""
    return {
        name: c
        for name, c in list(handle.opened.items())
        if c.is_restarting or c.why or not c.closed
    }


@atexit.register
def stop_owned() -> None:
    """Stop the clusters that end with this process, and disconnect from the others."""
    for cluster in list(handle.opened.values()):
        if cluster.owned or cluster.why:
            cluster.stop()
        else:
            cluster.close()
