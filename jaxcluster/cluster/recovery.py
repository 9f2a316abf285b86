"""New processes for a cluster: after a death, for a restart, and for another number of ranks.

The ranks' variables are saved, the old processes ended, new ones started, and the variables bound
there, on a thread of its own: a KeyboardInterrupt would leave it half done. The stop button gives
it up. While the variables are being saved, nothing was ended. Later the cluster has no processes
and keeps what was saved, and ``%jaxcluster restart`` goes on from there. The same is left where the
new processes don't come up.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from jaxcluster import wire
from jaxcluster.cluster import events, saving, stopbutton
from jaxcluster.cluster.starting import Starting
from jaxcluster.cluster.world import end_hung
from jaxcluster.errors import (
    CellInterrupted,
    JaxClusterError,
    LaunchError,
    NoCluster,
    RankDied,
)
from jaxcluster.model import notices
from jaxcluster.ranks import name_ranks
from jaxcluster.wire.forks import STOPPED

if TYPE_CHECKING:
    from jaxcluster.cluster.handle import Cluster

Say = Callable[[str], None]

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
    if cluster.closed or cluster.is_ending:
        cluster.check_not_closed()
        raise NoCluster(f"Cluster {cluster.name!r} is stopped.", "%jaxcluster start -n 4")
    world = cluster.world
    dead = sorted(world.dead)
    if world.unreachable:
        why = "; ".join(f"{host}: {why}" for host, why in world.unreachable.items())
        message = f"Hosts can't be reached from here, so the cell was not run ({why})."
        raise NoCluster(message, advice(cluster) or "")
    if dead:
        who = name_ranks(dead)
        cause, when = f"{who} died ({world.dead[dead[0]].why})", f"when {who} died"
    elif world.coordinator_died:  # this jax's ranks outlive it
        who = "JAX's coordinator"
        cause, when = f"{who} died ({world.coordinator_died})", f"when {who} died"
    else:
        return
    cause = ended_by_others(cluster) or cause
    message = f"{cause[0].upper()}{cause[1:]}, so the cell was not run."
    done = recover(cluster, message, when)
    log_end = cluster.world.log_excerpt(dead[0]) if dead else ""
    raise RankDied(message, "\n".join(filter(None, [log_end, done])), dead)


def recover(cluster: Cluster, message: str, when: str) -> str:
    """After ranks were lost: what was done about it.

    Args:
      message: what has happened, for the exception if a user stops this.
      when: see ``Cluster.restart``.

    Raises:
      CellInterrupted: it was stopped.
    """
    if (hint := advice(cluster)) is not None:
        return hint
    try:
        with cluster.changing:  # another thread may have done it just now
            return cluster.restart(when=when) if cluster.world.is_broken else ""
    except JaxClusterError as error:
        return f"Recovery failed: {error}"
    except CellInterrupted as stop:
        raise CellInterrupted("\n".join(filter(None, [message, str(stop)]))) from None


def advice(cluster: Cluster) -> str | None:
    """What to type about ranks that are lost; None: they are to be given new processes."""
    attach, by_others = f"%jaxcluster attach {cluster.name}", ended_by_others(cluster)
    if cluster.down:
        return cluster.down
    if cluster.closed or cluster.is_ending or by_others == STOPPED:  # by another, under the cell
        return "%jaxcluster start starts another."
    if cluster.world.unreachable:
        told = "The cluster may still be running; nothing was removed. When they can be reached: "
        return f"{told}{attach}"
    if by_others:
        return f"{attach} connects to its new processes."
    if not cluster.world.is_ours:
        if cluster.record.has_owner:
            told = f"The notebook that started it can restart it; {attach} connects to its new"
            return f"{told} processes then."
        return "%jaxcluster stop ends it; %jaxcluster start starts another."
    if cluster.recovery != "auto":
        told = "%jaxcluster restart gives it new processes and keeps the variables of the living"
        return f"{told} ranks."
    return None


def ended_by_others(cluster: Cluster) -> str:
    """Why its ranks have ended, if another process has ended them; else ""."""
    return notices.meant(death.why for death in cluster.dead.values())


def without_dead(cluster: Cluster) -> str:
    """Who has died."""
    if why := ended_by_others(cluster):
        return f"{why.capitalize()}."
    why = "; ".join(sorted({death.why for death in cluster.dead.values()}))
    lost = "can't be reached" if cluster.world.unreachable else "died"  # they may live
    return f"{name_ranks(cluster.dead).capitalize()} {lost} ({why})."


def without_coordinator(cluster: Cluster) -> str:
    """What the death of JAX's coordinator means."""
    return (
        f"JAX's coordinator died ({cluster.world.coordinator_died}), and every rank needs it. "
        "%jaxcluster restart gives the ranks new processes."
    )


class GivenUp(Exception):
    """It is to end here: stop was pressed, or the cluster is stopped for good."""


class Renewal:
    """One cluster's new processes.

    Args:
      clean: they have nothing of what the old ones had.
      when: names that are lost were lost then, as in "in cell [3]".
      spec: the cluster, if it is to have another number of ranks.

    Attributes:
      told: what was kept and what was lost, in a line, once it is carried through.
    """

    def __init__(
        self, cluster: Cluster, clean: bool, when: str, spec: wire.ClusterSpec | None = None
    ) -> None:
        self.cluster, self._clean, self._when, self._spec = cluster, clean, when, spec
        self.told = "All variables of the ranks are gone."
        self._had_none, self._why_down = cluster.closed, cluster.why  # processes
        self._starting: Starting | None = None
        self._given_up, self._stopped_for_good = threading.Event(), False
        self._error: BaseException | None = None
        self._began = time.perf_counter()
        self._ended = threading.Event()

    def carry_through(self, progress: Say | None = None) -> None:
        """Do it, and return when it is done. A stop button that is pressed meanwhile is heard.

        Args:
          progress: told, on another thread, how far it has come.

        Raises:
          CellInterrupted: it was stopped; the message says what the cluster is now.
          NoCluster: another thread has stopped the cluster.
          JaxClusterError: it failed; ``cluster.down`` says then whether it has processes.
        """
        run = contextvars.copy_context().run  # displays stay under the cell that asked for it
        with stopbutton.held(self.give_up):
            threading.Thread(target=run, args=(self._work, progress), daemon=True).start()
            self._ended.wait()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """End it at its next step or wait. Any thread, and signal handlers."""
        self._given_up.set()
        if (starting := self._starting) is not None:
            # A handler can't wait for a lock that its own thread may hold.
            threading.Thread(target=starting.cancel, daemon=True).start()

    def stop_for_good(self) -> None:
        """The cluster is being stopped: end it, and wait until it has ended. Any other thread."""
        self._stopped_for_good = True
        self.give_up()
        self._ended.wait()

    # ------------------------------------------------------------------ on its own thread

    def _work(self, progress: Say | None) -> None:
        try:
            with events.going_on(progress) as say:
                self._replace(say)
        except GivenUp:
            self._error = self._describe_stop()
        except BaseException as error:
            self._error = error
        finally:
            events.tell()
            self._ended.set()

    def _replace(self, say: Say) -> None:
        cluster, kept, allocation = self.cluster, self.cluster.kept, self.cluster.world.allocation
        assert allocation is not None  # else it can't be restarted from here
        if not self._had_none:
            if self._spec is None:
                allocation.check_returns()
            if not self._clean:
                say("saving the ranks' variables ...")
                end_hung(cluster.world, self._check)
                kept = saving.save(cluster.world, self._check, compare=self._spec is not None)
        if self._given_up.is_set():
            if self._had_none:
                cluster.leave_down(self._why_down)
            elif kept is not None:
                kept.folder.remove()
            raise GivenUp
        cluster.autosave.cancel()
        if self._spec is not None or self._clean:
            cluster.autosave.forget()
        if self._spec is not None:
            cluster.spec = self._spec
            allocation.leave_out_lost()
        cluster.kept = kept
        try:
            try:
                self._start_and_load(say)
            except (LaunchError, RankDied) as error:  # a rank that dies costs a second try
                self._check()
                say(f"{error.message.partition(chr(10))[0]} Trying again ...")
                self._start_and_load(say)
        except BaseException as error:
            if self._given_up.is_set():
                cluster.leave_down("their start was stopped")
                raise GivenUp from None
            cluster.leave_down("new ones did not start")
            if isinstance(error, JaxClusterError):
                error.hint = f"{error.hint}\n{cluster.down}".lstrip()
            raise
        if cluster.kept is not None:
            cluster.kept.folder.remove()
            cluster.kept = None

    def _start_and_load(self, say: Say) -> None:
        cluster, saves = self.cluster, self.cluster.autosave
        cluster.respawn(say, self._watch)
        self._check()
        if not self._clean and cluster.kept is not None:
            kept, world = cluster.kept.looked_at(), cluster.world  # a host may be lost with its own
            if kept.reports:
                say("restoring the variables ...")
            restored = saving.load(world, kept, self._check, self._when, cluster.made_by)
            saved = saves.kept.looked_at() if restored.replaced and saves.kept is not None else None
            if saved is not None and len(saved.reports) == world.num_processes:
                restored = saving.fill_in(world, saved, saves.cell, restored, self._check)
            self.told = restored.tell(time.perf_counter() - self._began)
        self._watch(None)  # from here on a stop comes too late: it would end what is done

    def _watch(self, starting: Starting | None) -> None:
        """The start that goes on now; None while it waits for its turn, and when it is done."""
        self._starting = starting
        self._check()

    def _check(self) -> None:
        if self._given_up.is_set():
            raise GivenUp

    def _describe_stop(self) -> BaseException:
        cluster = self.cluster
        if self._stopped_for_good:
            stopped = f"Cluster {cluster.name!r} was stopped meanwhile."
            return NoCluster(stopped, "%jaxcluster start -n 4")
        return CellInterrupted(cluster.down or GIVEN_UP)
