"""The processes of a cluster: what they are now, how they end, and new ones in their place."""

from __future__ import annotations

import abc
import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from jaxcluster import wire
from jaxcluster.allocation.allocation import Allocation
from jaxcluster.allocation.fleet import Left
from jaxcluster.allocation.states import Kept
from jaxcluster.cluster import description, events
from jaxcluster.cluster.argument_types import checked
from jaxcluster.cluster.autosave import Autosave
from jaxcluster.cluster.recovery import Renewal
from jaxcluster.cluster.starting import Progress, Starting, one_at_a_time, start_world
from jaxcluster.cluster.world import World
from jaxcluster.errors import NoCluster, UsageError
from jaxcluster.model.availability import ClusterCondition, RecoveryMode
from jaxcluster.model.life import Life, State
from jaxcluster.records import claims, registry
from jaxcluster.supervision.processes import pid_space, process_token
from jaxcluster.wire.forks import RESTARTED

TURN_S = 0.05  # between two looks whether a start that waits for another is still wanted

opened: dict[str, Any] = {}  # this process's clusters by name, also those that are being stopped


@checked
class Lifecycle(abc.ABC):
    """The part of a ``Cluster`` that has its processes.

    Args:
      allocation: what they run on, where this process has started them.
    """

    def __init__(self, world: World, allocation: Allocation | None) -> None:
        self.world = world
        self.spec = self.asked = world.record.spec
        self.name = world.record.name
        self.life = Life()
        self.kept: Kept | None = None
        self.autosave = Autosave()
        self.changing = threading.RLock()
        self._recovery: RecoveryMode = "auto"
        self._renewal: Renewal | None = None
        self._allocation = allocation

    @abc.abstractmethod
    def _take(self, world: World) -> None:
        """Have these ranks as its own from now on."""

    @property
    def record(self) -> registry.ClusterRecord:
        """Who its ranks are, as others find it."""
        return self.world.record

    @property
    def owned(self) -> bool:
        """Whether it ends with this process."""
        record = self.record
        return record.owner == process_token(os.getpid()) and record.pid_space == pid_space()

    def stop(self, force: bool = False) -> float:
        """End all its processes; returns after how many seconds. A stopped cluster: nothing.

        Args:
          force: where hosts can't be reached, end what can be and forget the rest. What lives
            there ends when nobody is connected to it: after 20 s, or, detached, with its login.

        Raises:
          LaunchError: another process has started it, and a host can't be reached. Nothing is done.
        """
        if (renewal := self._renewal) is not None:
            renewal.stop_for_good()
        with self.changing:
            if not force:
                self.world.check_reach()
            self.life.become(State.STOPPED, only=set(State) - {State.LEFT})
            self.autosave.cancel()
            self.autosave.forget()  # while there is a way to its folders
            took = self._end_world()
            if self.kept is not None:
                self.kept.folder.remove()
                self.kept = None
            if self._allocation is not None:  # it had no processes
                self._allocation.end()
                self._allocation = None
            if opened.get(self.name) is self:
                del opened[self.name]
        events.tell()
        return took

    def _end_world(self) -> float:
        """End its processes; returns after how many seconds. Where it has none: nothing."""
        if self.world.is_over:
            return 0.0
        started = time.perf_counter()
        if self.life.state is State.REPLACING and self._allocation is not None:
            self._allocation.keep()
            self.world.end(RESTARTED)
            self._allocation.clear()  # nobody else gets its name meanwhile
        else:
            self.world.end()
            claims.remove(self.record.name, self.record.claim)
            if self._allocation is not None:
                self._allocation.give_back()
                self._allocation = None
        return time.perf_counter() - started

    def close(self) -> None:
        """Let go of it without stopping it: the end of an ``attach``."""
        if not self.closed:
            self.life.become(State.LEFT)
            opened.pop(self.name, None)
            self.world.leave()
            if self._allocation is not None:
                self._allocation.let_go()
                self._allocation = None
            events.tell()

    def become(self, spec: wire.ClusterSpec) -> None:
        """Have its next processes be as ``spec`` says, on the hosts that are there."""
        self.spec = spec
        if self.asked.num_processes:
            self.asked = replace(self.asked, num_processes=spec.num_processes)
        if self._allocation is not None:
            self._allocation.leave_out_lost()

    @property
    def is_restarting(self) -> bool:
        """Whether it is being given new processes, by some thread."""
        return self._renewal is not None

    def press_stop(self) -> None:
        """The stop button, where another thread than the pressed one waits for new processes."""
        if (renewal := self._renewal) is not None:
            renewal.press()

    def respawn(
        self,
        progress: Progress | None = None,
        watch: Callable[[Starting | None], None] = lambda starting: None,
    ) -> None:
        """End all its processes and start new ones, with empty namespaces, in their place.

        Args:
          watch: is given the start that goes on, and may raise to end it.
        """
        self.life.become(State.REPLACING)
        self._end_world()
        with events.going_on(progress) as say:
            while not one_at_a_time.acquire(timeout=TURN_S):
                watch(None)
            try:
                started = start_world(self.spec, say, watch, self._allocation)
            finally:
                one_at_a_time.release()
        world, self._allocation = started
        self._take(world)
        self.life.become(State.RESTARTING)
        opened[self.name] = self

    def check_returns(self) -> None:
        """Whether new processes can take the place of those that it has.

        Raises:
          LaunchError: a host is lost, and there can be no other.
        """
        if self._allocation is not None:
            self._allocation.check_returns()

    @property
    def left(self) -> Left:
        """What is left of its hosts where some are lost, but not all."""
        return self._allocation.left if self._allocation is not None else Left()

    def leave_down(self, why: str) -> None:
        """After a restart that was not carried through: no processes, and what was saved is kept.

        Args:
          why: as in "their start was stopped".
        """
        self.life.become(State.REPLACING, only={State.RESTARTING, State.ENDING})
        self._end_world()
        self.life.become(State.DOWN, why)

    @property
    def closed(self) -> bool:
        """Whether it has no processes that this one is connected to."""
        return not self.life.has_processes

    @property
    def down(self) -> str:
        """Why it has no processes, where a restart was not carried through; "" otherwise."""
        if self.life.state is not State.DOWN:
            return ""
        return f"Cluster {self.name!r} has no processes now: {self.life.why}."

    @property
    def down_hint(self) -> str:
        """What to type where it has no processes, and what is still there."""
        spent = self._allocation.spent if self._allocation is not None else ""
        return description.down_hint(self.kept, spent, self.left)

    @property
    def condition(self) -> ClusterCondition:
        """What has become of it."""
        world, down = self.world, self.down
        return ClusterCondition(
            self.name,
            down,
            self.down_hint if down else "",
            self.closed or self.is_ending,
            world.unreachable,
            world.dead,
            world.coordinator_died,
            world.is_ours,
            lambda: self.record.has_owner,
            self.recovery,
        )

    @property
    def can_restart(self) -> bool:
        """Whether this process has started it, so that its ranks can be replaced from here."""
        return self.world.is_ours and not (self.closed or self.is_ending)

    @property
    def is_ending(self) -> bool:
        """Whether another process has stopped it, and its end is on its way."""
        return self.life.state is State.ENDING

    @property
    def is_replaced(self) -> bool:
        """Whether the process that it ends with has given it new processes since."""
        with contextlib.suppress(NoCluster):
            return registry.read(self.name).created_ns != self.record.created_ns
        return False

    @property
    def recovery(self) -> RecoveryMode:
        """What follows when ranks die or hang permanently."""
        return self._recovery

    @recovery.setter
    def recovery(self, mode: RecoveryMode) -> None:
        if mode not in get_args(RecoveryMode):
            raise UsageError(f"recovery must be 'auto' or 'never', not {mode!r}.")
        self._recovery = mode
        events.tell()

    def check_not_closed(self) -> None:
        """Raises NoCluster, with what to type, where it has no processes that could be asked."""
        if self.is_restarting and self.closed:
            raise NoCluster(
                f"Cluster {self.name!r} is being restarted.", "Wait for the new processes."
            )
        if self.down:
            raise NoCluster(self.down, self.down_hint)
        if self.closed:
            raise NoCluster(f"Cluster {self.name!r} is stopped.", "%jaxcluster start -n 4")

    def _end_with_others(self) -> None:
        """Another process has stopped it: what that leaves is cleared away. Any thread."""
        self.life.become(State.ENDING, only={State.RUNNING, State.RESTARTING})
        threading.Thread(target=self.stop, name="jaxcluster-stop", daemon=True).start()
