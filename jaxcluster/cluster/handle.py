"""A running cluster: runs cells on it, asks its ranks, and gives it new ones."""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxcluster import wire
from jaxcluster.agreement.messages import Looked
from jaxcluster.cluster import events, recovery, saving, stopbutton
from jaxcluster.cluster.events import Progress
from jaxcluster.cluster.history import History
from jaxcluster.cluster.questions import here
from jaxcluster.cluster.running import CellOptions, Listener, RunningCell
from jaxcluster.cluster.saving import Autosave
from jaxcluster.cluster.spec import resized
from jaxcluster.cluster.world import ASK_S, World
from jaxcluster.errors import LaunchError, NoCluster, RecoveryError, UsageError
from jaxcluster.hosts.records.reports import Reports
from jaxcluster.hosts.states import Kept
from jaxcluster.model import rewrite, waiting
from jaxcluster.model.layout import ArrayLayout, TreeLayout
from jaxcluster.model.outputs import CellRecord
from jaxcluster.model.waiting import Late
from jaxcluster.options.table import is_seconds
from jaxcluster.ranks import name_ranks
from jaxcluster.supervision.processes import process_token
from jaxcluster.wire.link import Event, Sink, replies
from jaxcluster.wire.ops.cells import Interrupt
from jaxcluster.wire.ops.status import Stacks

UNCHECKED = (
    "Launches can't be checked with this jax, so different programs on ranks may hang "
    "(%jaxcluster doctor says why). %jaxcluster status --stacks shows where."
)

opened: dict[str, Cluster] = {}  # this process's, by name, also those that are being stopped
told_of_ends: list[str] = []  # what others have stopped, until this process has another cluster


class Cluster:
    """A running cluster of JAX processes, one rank each.

    ``start`` and ``attach`` return one. As a context manager it stops at the end. It is
    thread-safe: a cell submitted during a restart runs after it.

    Attributes:
      world: the present ranks; a restart makes another world.
      spec: the options of its start, with defaults filled in.
      name: its name, for ``attach``.
      num_processes: how many ranks it has.
      record: its hosts, processes and keys, as other notebooks find them.
      dead: the ranks whose processes have ended, and why.
      why: why it has no processes now, if a restart can start them; otherwise "".
      last: the record of the last cell.
      last_failed: the record of the last cell that ended with an error of a rank.
      on_push: called with messages that ranks send unasked (widgets), on the link's thread.
      recovery: "auto" if ranks that die or hang are replaced at once, or "never".
      kept: variables that the old ranks have saved, and new ones have not loaded yet.
      made_by: for each name on the ranks, the number of the cell that made it.
      autosave: the variables at the end of the last cell that ended well.
      past_reports: reports of the last cells that failed, for ``%jaxcluster report``.
      changing: a lock, held while it gets new processes or ends.
      is_stopping: whether another thread has stopped it during a restart.
    """

    def __init__(self, world: World) -> None:
        self.spec = world.record.spec
        self.name = world.record.name
        self.recovery: Literal["auto", "never"] = "auto"
        self.last: CellRecord | None = None
        self.last_failed: CellRecord | None = None
        self.on_push: Callable[[Event[Any]], None] | None = None
        self.kept: Kept | None = None
        self.made_by: dict[str, int] = {}
        self.autosave = Autosave()
        self.past_reports = Reports(self.name)
        self.changing = threading.RLock()
        self.is_stopping = False
        self._stopped: threading.Event | None = None  # of the restart that goes on
        self._count = 0
        self.take(world)

    def take(self, world: World) -> None:
        """Use these ranks from now on."""
        told_of_ends.clear()
        world.check = self.check_not_closed
        world.on_stopping = self._end_with_others
        world.link.on_push = lambda event: self.on_push(event) if self.on_push else None
        self.world, self.num_processes, self.why = world, world.num_processes, ""
        self.record, self.dead = world.record, world.dead
        self.sent: list[RunningCell] = []  # to these ranks, but for older ones that have ended
        world.listen()
        if world.is_ending:  # meanwhile
            self._end_with_others()

    # ------------------------------------------------------------------ its ranks

    @property
    def client(self) -> Any:
        """An ``ipyparallel.Client`` on the same engines; engine id is rank.

        Use it for what only ipyparallel can do. jaxcluster does not see the cells that it runs.
        """
        return self.world.client

    def status(self) -> list[wire.RankState]:
        """The state of each rank now, also during a cell."""
        return self.world.status()

    def look(self, launches: int = 0) -> Looked | None:
        """Who waits for whom, and the last ``launches`` launches, also during a cell."""
        self.check_not_closed()
        return self.world.look(launches)

    def late(self) -> Late | None:
        """The rank that comes last into most launches, and by how much; None if there is none."""
        return waiting.find_late(self.look(waiting.LAUNCHES))

    def stacks(self) -> dict[int, wire.RankReport]:
        """The stack of each rank's threads, also while it runs or hangs."""
        self.check_not_closed()
        ranks = range(self.num_processes)
        return replies(self.world.link.gather(ranks, Stacks(), timeout_s=ASK_S))

    def logs(self, rank: int, lines: int | None = None) -> str:
        """A rank's log: what C code, subprocesses and the engine itself wrote."""
        (rank,) = self.world.check_ranks([rank])
        text = self.world.processes.read_log(f"rank-{rank}")
        return "\n".join(text.splitlines()[-lines:]) if lines else text

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self.why:
            return f"<jaxcluster {self.name!r}: no processes, %jaxcluster restart starts them>"
        if self.closed:
            return f"<jaxcluster {self.name!r}: stopped>"
        return f"<jaxcluster {self.name!r}: {self.num_processes} processes, {self.spec.platform}>"

    def summary(self) -> str:
        """One line: ranks, devices per rank, platform, time."""
        if self.down:
            return self.down
        record, started_s = self.record, self.world.started_s
        devices = [device for reply in record.devices for device in reply.devices]
        counts = sorted({len(reply.devices) for reply in record.devices})
        told = [
            f"Cluster {self.name!r}: {name_ranks(range(self.num_processes))}, "
            f"{'-'.join(map(str, counts))} {record.spec.platform} "
            f"device{'s' if counts != [1] else ''} per rank ({len(devices)} in all, "
            f"{', '.join(sorted({device.kind for device in devices}))})"
            f"{(started_s and f', ready in {started_s:.1f} s') or ''}."
        ]
        if not all(reply.recording for reply in record.devices):
            told.append(UNCHECKED)
        return " ".join([*told, recovery.tell_losses(self)]).rstrip()

    def restart(
        self,
        progress: Progress | None = None,
        *,
        clean: bool = False,
        num_processes: int | None = None,
        when: str = "",
    ) -> str:
        """Start new processes; returns a line that says which variables were kept and lost.

        All living ranks save their variables, and the new processes load them. A survivor gives a
        dead rank's successor the values that all ranks share. For another number of ranks, arrays
        that span processes are cut for the new meshes. Lost hosts are left out. The stop button
        ends the restart.

        Args:
          clean: keep nothing.
          num_processes: the new number of ranks; by default the old one.
          when: words for messages about lost names, such as "in cell [3]".

        Raises:
          UsageError: the cluster can't have so many ranks. Nothing was changed.
          RecoveryError: nothing could be saved; the old processes still run then.
          LaunchError: the new processes did not come up; the saved variables are kept.
          CellInterrupted: the user stopped it; the message says which processes run now.
        """
        with self.changing:
            if not self.why:
                self.check_not_closed()
            if self.world.allocation is None:
                told = f"Cluster {self.name!r} was started elsewhere, and can't be restarted here."
                raise RecoveryError(told, recovery.advice(self) or "")
            spec = resized(self.spec, num_processes) if num_processes is not None else None
            when = when or ("when it was resized" if spec is not None else "in a restart")
            stopped = self._stopped = threading.Event()
            self.is_stopping = False  # whoever has waited to stop it may have given that up
            try:
                with stopbutton.held(self.press_stop), events.going_on(progress) as say:
                    return recovery.renew(self, say, stopped, clean=clean, when=when, spec=spec)
            finally:
                self._stopped = None

    @property
    def owned(self) -> bool:
        """Whether it ends with this process."""
        return self.world.is_ours and self.record.owner == process_token(os.getpid())

    def stop(self, force: bool = False) -> float:
        """End all its processes; returns the seconds that took. A second call does nothing.

        Args:
          force: forget hosts that can't be reached, and end the others. Processes on a forgotten
            host end 20 s after the last connection. Detached ones end when the login there ends.

        Raises:
          LaunchError: another process has started the cluster, and a host can't be reached. Nothing
            ends.
        """
        if self.is_restarting:
            self.is_stopping = True
            self.press_stop()
        with self.changing:
            world = self.world
            is_sure = force or world.is_over or world.is_ours
            if hosts := [] if is_sure else world.fleet.out_of_reach():  # they would go on unseen
                raise LaunchError(
                    f"Cluster {self.name!r} was not stopped: {', '.join(hosts)} can't be "
                    "reached from here.",
                    "Its ranks may still run there. Try again later, or stop it on "
                    f"{self.record.hostname}, where it was started. %jaxcluster stop "
                    f"{self.name} --force ends what can be reached, and forgets the rest.",
                )
            began, was_closed = time.perf_counter(), self.closed
            self.why = ""
            self.autosave.cancel()
            saving.forget(self.autosave)  # while there is a way to its folders
            saving.forget(self)
            world.end()
            if opened.get(self.name) is self:
                del opened[self.name]
        events.tell()
        return 0.0 if was_closed else time.perf_counter() - began

    def close(self) -> None:
        """Disconnect from it, and leave it running."""
        if not self.closed:
            opened.pop(self.name, None)
            self.world.leave()
            events.tell()

    @property
    def is_restarting(self) -> bool:
        """Whether some thread restarts it."""
        return self._stopped is not None

    def press_stop(self) -> None:
        """End a restart that goes on at its next step. Any thread, and signal handlers."""
        if (stopped := self._stopped) is not None:
            # A handler can't wait for a lock that its own thread may hold.
            _thread.start_new_thread(stopped.set, ())

    @property
    def closed(self) -> bool:
        """Whether this process is connected to none of its processes."""
        return self.world.is_over

    @property
    def down(self) -> str:
        """Why a restart has left it without processes, and what to type; otherwise ""."""
        if not self.why:
            return ""
        assert self.world.allocation is not None
        spent, offer = self.world.allocation.spent, self.world.allocation.offer
        kept = self.kept.looked_at() if self.kept is not None else None
        told = f"Cluster {self.name!r} has no processes now: {self.why}.\n"
        if spent:
            told += f"{spent[0].upper()}{spent[1:]}. "
        if kept is not None and kept.gone:
            told += f"The saved variables are gone: {kept.why_gone}. "
        ways, again, ends = [], "starts them again, with empty ranks", "ends the cluster"
        if kept is not None and kept.reports:
            told += f"The variables of {name_ranks(kept.reports)} are saved: "
            again, ends = "restores them", "discards them"
        if offer:
            ways, again = [offer], "tries again with all hosts"
        if not spent:
            ways.append(f"%jaxcluster restart {again}")
        return f"{told}{'; '.join([*ways, f'%jaxcluster stop {ends}'])}."

    def check_not_closed(self) -> None:
        """Raise NoCluster, with what to type, if it has no processes to ask."""
        if self.is_restarting and self.closed:
            raise NoCluster(
                f"Cluster {self.name!r} is being restarted.", "Wait for the new processes."
            )
        if self.down:
            raise NoCluster(self.down)
        if self.closed or self.world.is_ending:  # by another process, and its end is on its way
            raise NoCluster(f"Cluster {self.name!r} is stopped.", "%jaxcluster start -n 4")

    def _end_with_others(self) -> None:
        """Another process has stopped it: what that leaves is cleared away. Any thread."""
        told_of_ends.append(f"Another notebook or a shell has stopped cluster {self.name!r}.")
        threading.Thread(target=self.stop, name="jaxcluster-stop", daemon=True).start()

    # ------------------------------------------------------------------ cells

    def run(
        self, source: str, *, on_output: Listener | None = None, show: bool = True, **options: Any
    ) -> CellRecord:
        """Run a cell on all ranks (or ``ranks``) and return when all have ended it.

        Args:
          source: IPython code.
          on_output: called with each output and reply as it comes, on this thread.
          show: without ``on_output``: print what the first rank prints.
          **options: more of ``CellOptions``, such as ``ranks``, ``timeout_s`` and ``shown_ranks``.

        Raises:
          CellFailed: it raised on some ranks. The others stop before their next launch; those that
            launch nothing are interrupted 2 s later.
          Divergence: its ranks were about to launch different programs. Nothing was launched.
          RankDied: a rank's process ended.
          RankHung: some ranks did not come back from C code.
        """
        on_output = on_output or (_print_first if show else None)
        own: dict[str, Any] = {"prompt": here(_print_output), "is_waited_for": True} | options
        return self.submit(source, on_output=on_output, **own).wait()

    def submit(self, source: str, **options: Any) -> RunningCell:
        """Like ``run``, without waiting: ``wait`` on what it returns.

        Args:
          **options: see ``CellOptions``.
        """
        wanted, source = CellOptions(**options), rewrite.with_all_lines(source)
        if wanted.timeout_s is not None and not is_seconds(wanted.timeout_s):
            wrong = f"A cell's time limit must be more than 0 seconds, not {wanted.timeout_s!r}."
            raise UsageError(wrong, "Try: %%spmd --timeout 60")
        is_cell = wanted.message is None
        with self.changing:
            recovery.ensure_open(self)
            world, count = self.world, wanted.execution_count
            ranks = world.check_ranks(wanted.ranks)
            shown = world.check_ranks(wanted.shown_ranks) if wanted.shown_ranks is not None else ()
            self._count += is_cell
            request = wire.CellRequest(
                turn=world.turn(ranks, is_waited_for=wanted.is_waited_for, is_skippable=is_cell),
                source=source,
                execution_count=self._count if count is None else int(count),
                shown_ranks=list(shown) if wanted.shown_ranks is not None else ranks[:1],
                cell_id=wanted.cell_id,
                parent=wanted.parent,
                message=wanted.message,
                profile=str(Path(wanted.profile).expanduser().absolute()) if wanted.profile else "",
                sent_ns=time.time_ns(),
                who=world.who,
            )
            record = CellRecord.of(request, shown=shown)
            with stopbutton.held() as pressed:
                sink, each = Sink(), dict.fromkeys(ranks, request)
                ids = world.link.request_each(each, buffers=wanted.buffers, sink=sink)
                cell = RunningCell(self, record, sink, ids, wanted)
                self.sent = [one for one in self.sent if not one.done] + [cell]
                if is_cell:
                    self.last = record
                events.tell(cell)
        if pressed:
            cell.stop()
        return cell

    @property
    def cells(self) -> list[RunningCell]:
        """The cells of this process that have not ended on all their ranks."""
        return [cell for cell in self.sent if not cell.done]

    def checkpoint(self, name: str, folder: str | Path = "jaxcluster-checkpoints") -> str:
        """Save every rank's variables to disk, in ``folder/name``; returns what was saved.

        It takes one copy of all that the ranks hold.

        Raises:
          UsageError: the name can't be a checkpoint's.
          RankError: a rank could not write its file.
        """
        return saving.checkpoint(self.world, name, folder)

    def restore(self, name: str, folder: str | Path = "jaxcluster-checkpoints") -> str:
        """Load a checkpoint on all ranks, or on none; returns what came back.

        Another cluster may have saved it, also with another number of ranks: see ``restart``.

        Raises:
          UsageError: there is no checkpoint of that name.
          RecoveryError: it does not fit this cluster, can't be read, or is not this user's alone.
            Nothing was restored.
          CellInterrupted: the user stopped it before any rank had bound a name.
        """
        return saving.restore(self.world, name, folder)

    def restore_last(self) -> str:
        """Load the last autosave on all ranks, or on none; returns what came back.

        Raises:
          UsageError: there is no autosave; the message says why.
        """
        self.check_not_closed()
        self.autosave.wait()
        if self.autosave.kept is None:
            raise UsageError(
                f"Autosave saved nothing{self.autosave.why_not and ': '}{self.autosave.why_not}.",
                "%jaxcluster autosave on saves after each cell from now on.",
            )
        when = f"when the end of cell [{self.autosave.cell}] was restored"
        return saving.restore_from(self.world, self.autosave.kept, when)

    def set_autosave(self, *, is_on: bool) -> None:
        """Save the ranks' variables after each cell, in the background, or no longer."""
        self.autosave.is_on = is_on
        if not is_on:
            self.autosave.wait()
            saving.forget(self.autosave)

    def history(self) -> History:
        """The cells that all notebooks have run on its ranks, oldest first.

        It can be read while a cell runs, and after ranks have died. Ranks keep the newest cells.
        """
        self.check_not_closed()
        return History(self.world)

    def interrupt(self) -> list[int]:
        """Interrupt what the ranks run now; returns the ranks that were running something.

        During a restart it acts as the stop button.
        """
        if self.is_restarting:
            self.press_stop()
            return []
        self.check_not_closed()
        ranks = range(self.num_processes)
        answers = self.world.link.gather(ranks, Interrupt(None), timeout_s=ASK_S)
        return sorted(r for r, event in answers.items() if event.op == "reply" and event.body)

    # ------------------------------------------------------------------ values

    def push(self, values: Mapping[str, Any], ranks: Sequence[int] | None = None) -> None:
        """Copy values to the ranks, by their names. See ``jaxcluster.cluster.transfer.push``."""
        from jaxcluster.cluster import transfer  # with numpy, which a shell command has no use for

        transfer.push(self.world, values, ranks)

    def pull(self, name: str) -> Any:
        """The value of a name on rank 0, with whole numpy arrays. See ``transfer.pull``."""
        from jaxcluster.cluster import transfer  # with numpy, which a shell command has no use for

        return transfer.pull(self.world, name)

    def layout(self, name: str) -> ArrayLayout | TreeLayout:
        """Which device holds which part of a rank-side array, or of the arrays of a pytree.

        Args:
          name: a variable, or a part of one: ``"params['w']"``.

        Raises:
          UsageError: no rank has it, or it holds no array.
        """
        from jaxcluster.cluster import array_queries  # with numpy, as for ``push``

        return array_queries.look(self.world, name)

    def __getitem__(self, name: str) -> Any:
        return self.pull(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.push({name: value})


def _print_first(record: CellRecord, what: wire.RankOutput | wire.CellReply) -> None:
    """Show the first rank's text as a script's own."""
    if isinstance(what, wire.RankOutput) and what.rank == record.ranks[0]:
        _print_output(what)


def _print_output(output: wire.RankOutput) -> None:
    if output.kind == "stream":
        print(output.content["text"], end="", flush=True)
    elif output.kind in ("display_data", "execute_result"):
        print(output.content["data"].get("text/plain", ""), flush=True)
