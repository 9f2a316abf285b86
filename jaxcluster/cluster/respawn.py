"""New processes for a cluster, on a thread of its own that no stop button can tear apart.

Python raises a KeyboardInterrupt wherever the main thread happens to be. So all that must not be
left half done is done on another thread, in this order: save the ranks' variables, end the old
processes, start new ones, restore. The thread that asked for it waits, passes on how far it has
come, and hears the stop button:

- while the variables are being saved, a stop gives it up: nothing was ended, nothing is lost;
- later the first stop is told what goes on, and the second one leaves it. What is there then is a
  cluster without processes that keeps what was saved, and ``%jaxcluster restart`` goes on from
  there. The same is left where the new processes don't come up.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from jaxcluster import wire
from jaxcluster.cluster import between_cells, events, resizing, restart, stopbutton
from jaxcluster.cluster.action_runner import Owner
from jaxcluster.cluster.restoring import NotBrought
from jaxcluster.cluster.starting import Starting
from jaxcluster.errors import (
    CellInterrupted,
    JaxClusterError,
    LaunchError,
    NoCluster,
    RankDied,
    RecoveryError,
    UsageError,
)
from jaxcluster.model.last_known import LastKnown
from jaxcluster.ranks import name_ranks
from jaxcluster.records.saved_states import Kept
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.lockstep import AtRest
from jaxcluster.wire.ops.state import HoldReplies

Say = Callable[[str], None]

HOLD_S = 1.0  # that ranks have to say so; what they are told comes before what they are asked later

GIVEN_UP = (
    "Stopped while the ranks' variables were being saved. Nothing was ended or lost: the living "
    "processes keep their variables."
)


ENDED_UNLIKE = (
    "A cell of another notebook had not ended alike on all ranks: don't trust what it assigned."
)


class GivenUp(Exception):
    """It is to end here: stop was pressed, or the cluster is stopped permanently."""


class Respawn:
    """One cluster's new processes.

    Args:
      clean: restore nothing.
      when: when names were lost that are lost, as in "in cell [3]".
      undo: names that the last cell has bound are to be what they were before it.
      resize: what it is from then on, with another number of ranks.

    Attributes:
      restored: what came back, once it is done; None for a clean one.
    """

    def __init__(
        self,
        cluster: Owner,
        *,
        clean: bool = False,
        when: str = "",
        undo: bool = False,
        resize: restart.Resize | None = None,
    ) -> None:
        self.cluster = cluster
        self.clean = clean
        self.when = when
        self.undo = undo
        self.resize = resize
        self.restored: restart.Restored | None = None
        self._kept: Kept | None = cluster.kept
        self._nothing_to_lose = cluster.closed  # as it is now: it has no processes to be ended
        self._why_down = cluster.life.why
        self._starting: Starting | None = None
        self._world = cluster.world  # that of the old processes
        # The turn, from the save to the end of the old processes: what another notebook took back
        # meanwhile would be saved on some ranks, or come again. And that of the new ones, until
        # they have the variables: who has attached to them by then waits with its cells.
        self._turn = contextlib.ExitStack()
        self._is_replacing = False  # the old processes are ended, or about to be
        self._was_told = False
        self._is_given_up = False
        self._stopped_for_good = False
        self._deciding = threading.Lock()  # held while a stop is weighed against the next step
        self._error: BaseException | None = None
        self._began = time.perf_counter()
        self._ended = threading.Event()
        self._heard = threading.Condition()
        self._lines_heard = 0
        # To the thread that waits: a line to pass on, a stop that was pressed, or the end. A signal
        # handler may interrupt a put with another.
        self._inbox: wire.Inbox[str | _Sign] = wire.Inbox()
        self._thread = threading.Thread(target=self._work, name="jaxcluster-respawn", daemon=True)

    def carry_through(self, progress: Say | None = None) -> None:
        """Do it, and return when it is done. A stop button that is pressed meanwhile is heard.

        Args:
          progress: told, on this thread, how far it has come.

        Raises:
          CellInterrupted: it was stopped; the message says what the cluster is now.
          NoCluster: another thread has stopped the cluster.
          JaxClusterError: it failed. ``cluster.down`` says then whether it has processes.
        """
        try:
            is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
            # Else somebody handles it.
            with stopbutton.held(self.press) if is_pythons else contextlib.nullcontext():
                self._thread.start()
                raised = self._listen(progress or _ignore)
        finally:
            if self._thread.ident is not None and not self._ended.is_set():
                self.give_up()  # it listens no more: a second KeyboardInterrupt in the first one's
                self._ended.wait()
        if self._error is not None:
            raise raised or self._error

    def _listen(self, progress: Say) -> BaseException | None:
        """Pass on what the other thread says, until it has ended; returns what that raised."""
        raised: BaseException | None = None
        while True:
            try:
                what = self._inbox.get()
                if what is _DONE:
                    return raised
                if what is _PRESSED:
                    self._weigh_stop()
                elif isinstance(what, str):
                    try:
                        progress(what)
                    finally:
                        self._line_was_heard()
            except KeyboardInterrupt:  # where SIGINT has a handler that is not Python's own
                self.press()
            except BaseException as error:
                raised = error
                self.give_up()

    def press(self) -> None:
        """The stop button. Any thread, and signal handlers."""
        self._inbox.put(_PRESSED)

    def stop_for_good(self) -> None:
        """The cluster is being stopped: end it, and wait until it has ended. Any other thread."""
        self._stopped_for_good = True
        self.give_up()
        if threading.current_thread() is not self._thread:
            self._ended.wait()

    def give_up(self) -> None:
        """End it at its next step or wait."""
        with self._deciding:
            self._is_given_up = True
            starting = self._starting
        if starting is not None:
            starting.cancel()
        with self._heard:
            self._heard.notify_all()

    def _weigh_stop(self) -> None:
        with self._deciding:
            leave = self._was_told or not self._is_replacing or self._nothing_to_lose
            self._was_told = True
        if leave:
            self.give_up()
            return
        their = "" if self.clean else ", and their variables are saved"
        print(
            f"The old processes have ended{their}, and new ones are starting. Stop again to "
            "cancel the start.",
            file=sys.stderr,
            flush=True,
        )

    # ------------------------------------------------------------------ on its own thread

    def _work(self) -> None:
        try:
            with events.going_on(self._say) as say:
                self._replace(say)
        except GivenUp:
            self._error = self._describe_stop()
        except BaseException as error:
            self._error = error
        finally:
            events.tell()
            self._ended.set()
            self._inbox.put(_DONE)

    def _replace(self, say: Say) -> None:
        with self._turn:
            if not self._nothing_to_lose and self.resize is None:
                self.cluster.check_returns()
            if not self.clean and self._kept is None and not self._nothing_to_lose:
                say("saving the ranks' variables ...")
                self._save()
            self._give_new_processes(say)

    def _save(self) -> None:
        cluster = self.cluster
        cluster.world.end_hung(self._check)
        last = self._take_turn()
        self._hold_replies(True)
        self._turn.callback(self._hold_replies, False)
        cells = [cell.record for cell in cluster.sent]
        kept = restart.save(cluster.world, cells, last, self._check, self.undo, self.resize)
        self._kept = replace(kept, notes=self._doubt())
        if self.resize is not None:
            self._check_resize(self._kept)

    def _doubt(self) -> str:
        """What is to be said of other notebooks' cells, which have ended: nobody settles them."""
        world = self._world
        if world.dead or world.is_over:
            return ""
        rests = replies(world.link.gather(world.link.ranks, AtRest(), timeout_s=HOLD_S))
        unlike = between_cells.standing(rests, {}).unsettled - world.own_cells
        return ENDED_UNLIKE if unlike else ""

    def _take_turn(self) -> Mapping[int, int] | None:
        """Each rank's last cell; None: nobody can hand out a cell any more, nor take one back."""
        with contextlib.suppress(NoCluster):
            return self._turn.enter_context(self.cluster.world.turns.quiet())
        return None

    def _hold_replies(self, is_on: bool) -> None:
        """Another notebook's cell that ends from now on changes nothing that is saved for sure.

        What ranks have told by now, as of its undo, is heard before their answers.
        """
        world = self._world
        living = [rank for rank in world.link.ranks if rank not in world.dead]
        if not world.is_over:
            world.link.gather(living, HoldReplies(is_on), timeout_s=HOLD_S)

    def _give_new_processes(self, say: Say) -> None:
        cluster = self.cluster
        with self._deciding:
            given_up = self._is_given_up
            self._is_replacing = not given_up
        if given_up:
            if self._kept is not None and self._kept is not cluster.kept:
                self._kept.folder.remove()
            if self._nothing_to_lose:
                cluster.leave_down(self._why_down)
            raise GivenUp
        if self.resize is not None:
            cluster.become(self.resize.spec)
            if self._kept is not None:
                mesh = self.resize.mesh or self._kept.mesh
                self._kept = replace(self._kept, mesh=mesh, is_resized=True)
        if self._kept is not None:
            cluster.kept = self._kept
        try:
            self._try_twice(say)
        except BaseException as error:
            if self._is_given_up:
                cluster.leave_down("their start was stopped")
                raise GivenUp from None
            cluster.leave_down("new ones did not start")
            if isinstance(error, JaxClusterError):
                error.hint = f"{error.hint}\n{cluster.down} {cluster.down_hint}".lstrip()
            raise
        if cluster.kept is not None:
            cluster.kept.folder.remove()
            cluster.kept = None
        cluster.recovered = "All variables of the ranks are gone."
        if self.restored is not None:
            cluster.recovered = str(self.restored)

    def _check_resize(self, kept: Kept) -> None:
        """Give up what was saved, where it can't be known what becomes of it. Nothing was ended.

        Raises:
          UsageError: it is not clear which axis of a mesh takes the change.
          RecoveryError: a rank has died.
        """
        unclear = next(filter(None, (r.unclear for r in kept.reports.values())), None)
        assert self.resize is not None
        is_short = bool(kept.dead) and not self.resize.without_lost
        if unclear or is_short:
            kept.folder.remove()
        if unclear:
            message, hint = unclear
            raise UsageError(f"{message} Nothing was changed.", hint)
        if is_short:
            raise RecoveryError(
                f"{name_ranks(kept.dead).capitalize()} died, so the cluster was not resized.",
                "%jaxcluster restart replaces the dead; then resize it.",
            )

    def _try_twice(self, say: Say) -> None:
        """A rank that dies meanwhile costs a second try, and no more."""
        try:
            self._start_and_restore(say)
        except (LaunchError, RankDied) as error:
            self._check()
            say(f"{error.message.partition(chr(10))[0]} Trying again ...")
            self._start_and_restore(say)

    def _start_and_restore(self, say: Say) -> None:
        cluster = self.cluster
        cluster.respawn(say, self._watch)
        self._take_turn()
        self._check()
        cluster.equip()
        if not self.clean and self._kept is not None:
            kept = self._kept.looked_at()  # a host may have been lost with what it had
            if kept.reports:
                say("restoring the variables ...")
            when = self.when or ("when it was resized" if kept.is_resized else "in a restart")
            made_by = cluster.lineage.known(cluster.world.record.last_seq)
            self._kept = replace(kept, when=when, made_by=made_by)
            restored = self._restore(self._kept)
            self.restored = replace(restored, seconds=time.perf_counter() - self._began)
        self._watch(None)  # from here on a stop comes too late: it would end what is done

    def _restore(self, kept: Kept) -> restart.Restored:
        """Bring back what was saved; by way of the notebook, where hosts don't reach each other."""
        world = self.cluster.world
        bring = resizing.restore if kept.is_resized else restart.restore
        last, first = world.turns.last_cells(), world.record.last_seq
        world.told = {r: LastKnown(seq=max(first, last.get(r, 0))) for r in world.link.ranks}
        try:
            return bring(world, kept, self._check)
        except NotBrought:
            kept.folder.bring_all()
            return bring(world, kept, self._check)

    def _watch(self, starting: Starting | None) -> None:
        """The start that goes on now; None while it waits for its turn, and when it is done."""
        self._turn.close()  # the old processes have ended
        with self._deciding:
            self._starting = starting
        self._check()

    def _check(self) -> None:
        if self._is_given_up:
            raise GivenUp

    def _say(self, line: str) -> None:
        """Have the waiting thread pass a line on, and go on when it has."""
        self._inbox.put(line)
        with self._heard:
            self._heard.wait_for(lambda: self._lines_heard > 0 or self._is_given_up)
            self._lines_heard = max(0, self._lines_heard - 1)
        self._check()

    def _line_was_heard(self) -> None:
        with self._heard:
            self._lines_heard += 1
            self._heard.notify_all()

    # ------------------------------------------------------------------ messages

    def _describe_stop(self) -> BaseException:
        cluster = self.cluster
        if self._stopped_for_good:
            return NoCluster(
                f"Cluster {cluster.name!r} was stopped meanwhile.", "%jaxcluster start -n 4"
            )
        if not cluster.down:
            hint = "%jaxcluster restart tries again."
            return CellInterrupted(f"{GIVEN_UP}\n{hint}")
        return CellInterrupted(f"{cluster.down}\n{cluster.down_hint}")


class _Sign:
    """What is not a line."""


_PRESSED, _DONE = _Sign(), _Sign()


def _ignore(line: str) -> None:
    """For who does not want to know how far it has come."""
