"""New processes for a cluster: after a death, for a restart, and for another number of ranks.

The ranks' variables are saved, the old processes ended, new ones started, and the variables bound
there. A KeyboardInterrupt would leave that half done, so the stop button gives it up at its next
step. During the save, a stop ends nothing. Later it leaves a cluster without processes, which keeps
what was saved, and ``%jaxcluster restart`` goes on from there. If the new processes don't come up,
the cluster is left in the same state.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from jaxcluster import wire
from jaxcluster.cluster import saving
from jaxcluster.cluster.events import Progress
from jaxcluster.cluster.starting import one_at_a_time, start_world
from jaxcluster.cluster.world import end_hung
from jaxcluster.errors import (
    RESTART_HINT,
    CellInterrupted,
    JaxClusterError,
    LaunchError,
    NoCluster,
    RankDied,
)
from jaxcluster.ranks import name_ranks
from jaxcluster.text import plural
from jaxcluster.wire.forks import STOPPED

if TYPE_CHECKING:
    from jaxcluster.cluster.handle import Cluster

TURN_S = 0.05  # between two looks whether a start that waits for another is still wanted
COORDINATOR = "JAX's coordinator"
GIVEN_UP = (
    "Stopped while the ranks' variables were being saved. Nothing was ended or lost.\n"
    "%jaxcluster restart tries again."
)


def ensure_open(cluster: Cluster) -> None:
    """Raise if no cell can run. Ranks that are lost are replaced first, if recovery is auto.

    Raises:
      NoCluster: it has no processes that can be reached from here.
      RankDied: ranks had died; the message says what was done about that.
    """
    cluster.check_not_closed()
    if not (told := losses(cluster)):
        return
    message, dead = f"{told}, so the cell was not run.", sorted(cluster.dead)
    if cluster.world.unreachable:
        raise NoCluster(message, advice(cluster) or "")
    done = recover(cluster, message, f"when {name_ranks(dead) if dead else COORDINATOR} died")
    log_end = cluster.world.log_excerpt(dead[0]) if dead else ""
    raise RankDied(message, "\n".join(filter(None, [log_end, done])), dead)


def recover(cluster: Cluster, message: str, when: str, say: Progress | None = None) -> str:
    """After ranks were lost: what was done about it.

    Args:
      message: what has happened, for the exception if a user stops this.
      when, say: see ``Cluster.restart``.

    Raises:
      CellInterrupted: it was stopped.
    """
    if (hint := advice(cluster)) is not None:
        return hint
    try:
        with cluster.changing:  # another thread may have done it just now
            return cluster.restart(say, when=when) if cluster.world.is_broken else ""
    except JaxClusterError as error:
        return f"Recovery failed: {error}"
    except CellInterrupted as stop:
        raise CellInterrupted("\n".join(filter(None, [message, str(stop)]))) from None


def advice(cluster: Cluster) -> str | None:
    """The command that helps with lost ranks; None: they get new processes."""
    attach, world = f"%jaxcluster attach {cluster.name}", cluster.world
    if cluster.down:
        return cluster.down
    if cluster.closed or world.is_ending or world.ended_by == STOPPED:  # under the cell
        return "%jaxcluster start starts another."
    if world.unreachable:
        told = "The cluster may still be running; nothing was removed. When they can be reached: "
        return f"{told}{attach}"
    if world.ended_by:
        return f"{attach} connects to its new processes."
    if not world.is_ours:
        if cluster.record.has_owner:
            told = f"The notebook that started it can restart it; {attach} connects to its new"
            return f"{told} processes then."
        return f"%jaxcluster stop {cluster.name} ends it; %jaxcluster start starts another."
    if cluster.recovery != "auto":
        return RESTART_HINT
    return None


def losses(cluster: Cluster) -> str:
    """Which ranks have died and why, as in "Rank 2 died (killed by SIGKILL)"; "" where none has."""
    world = cluster.world
    if world.ended_by:
        return world.ended_by.capitalize()
    if cluster.dead:
        why = "; ".join(sorted({death.why for death in cluster.dead.values()}))
        lost = "can't be reached" if world.unreachable else "died"  # they may live
        return f"{name_ranks(cluster.dead).capitalize()} {lost} ({why})"
    if world.coordinator_died:  # this jax's ranks outlive it
        return f"{COORDINATOR} died ({world.coordinator_died})"
    return ""


def tell_losses(cluster: Cluster) -> str:
    """The same with what to type."""
    told = losses(cluster)
    return f"{told}. {advice(cluster) or RESTART_HINT}" if told else ""


def renew(
    cluster: Cluster,
    say: Progress,
    stopped: threading.Event,
    *,
    clean: bool,
    when: str,
    spec: wire.ClusterSpec | None,
) -> str:
    """See ``Cluster.restart``; ``stopped`` ends it at its next step or wait once it is set."""

    def check() -> None:
        if cluster.is_stopping:
            told = f"Cluster {cluster.name!r} was stopped meanwhile."
            raise NoCluster(told, "%jaxcluster start -n 4") from None
        if stopped.is_set():
            raise CellInterrupted(cluster.down or GIVEN_UP) from None

    def start_and_load() -> str:
        began, saves = time.perf_counter(), cluster.autosave
        cluster.world.vacate()
        while not one_at_a_time.acquire(timeout=TURN_S):
            check()
        try:
            cluster.take(start_world(cluster.spec, say, allocation=allocation, stopped=stopped))
        finally:
            one_at_a_time.release()
        check()
        told = "All variables of the ranks are gone."
        if kept is not None and not clean:
            world, found = cluster.world, kept.looked_at()  # a host may be lost with its own
            if found.reports:
                say("restoring the variables ...")
            autosaved = (saves.kept, saves.cell) if saves.kept is not None else None
            count, details = saving.load(world, found, check, when, cluster.made_by, autosaved)
            who = plural(world.num_processes, "rank") if spec is not None else "New processes"
            lost = [r for r in range(world.num_processes) if r not in found.reports]
            is_resized = kept.num_processes != world.num_processes
            replaced = f", {name_ranks(lost)} replaced" if lost and not is_resized else ""
            took = time.perf_counter() - began
            told = f"{who} after {took:.1f} s{replaced}: {plural(count, 'variable')} kept."
            told = " ".join([told, *details])
        check()  # from here on a stop comes too late: it would end what is done
        return told

    kept, allocation = cluster.kept, cluster.world.allocation
    assert allocation is not None  # else it can't be restarted from here
    if not cluster.closed:
        if spec is None:
            allocation.check_returns()
        if not clean:
            say("saving the ranks' variables ...")
            end_hung(cluster.world, check)
            kept = saving.save(cluster.world, check, compare=spec is not None)
    cluster.autosave.cancel()
    if spec is not None or clean:
        saving.forget(cluster.autosave)
    if spec is not None:
        cluster.spec = spec
        allocation.leave_out_lost()
    cluster.kept = kept
    try:
        try:
            told = start_and_load()
        except (LaunchError, RankDied) as error:  # a rank that dies costs a second try
            check()
            say(f"{error.message.partition(chr(10))[0]} Trying again ...")
            told = start_and_load()
    except BaseException as error:
        cluster.world.vacate()
        cluster.why = "their start was stopped" if stopped.is_set() else "new ones did not start"
        check()
        if isinstance(error, JaxClusterError):
            error.hint = f"{error.hint}\n{cluster.down}".lstrip()
        raise
    saving.forget(cluster)
    return told
