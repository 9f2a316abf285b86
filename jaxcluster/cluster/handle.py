"""A running cluster: runs cells on it, asks its ranks, and gives it new ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.allocation.allocation import Allocation
from jaxcluster.cluster import (
    delegation,
    description,
    events,
    history,
    profiling,
    recovery,
)
from jaxcluster.cluster.argument_types import checked
from jaxcluster.cluster.dispatch import Dispatcher
from jaxcluster.cluster.lifecycle import Lifecycle
from jaxcluster.cluster.prompts import Labelled, here
from jaxcluster.cluster.recovery import Renewal, Wanted
from jaxcluster.cluster.resources import Meter, Sample
from jaxcluster.cluster.running import CellOptions, Listener, RunningCell
from jaxcluster.cluster.saving import Restored
from jaxcluster.cluster.spec import resized
from jaxcluster.cluster.starting import Progress
from jaxcluster.cluster.world import World
from jaxcluster.errors import RecoveryError, UsageError
from jaxcluster.model import lateness
from jaxcluster.model.history import History
from jaxcluster.model.lateness import Late
from jaxcluster.model.layout import ArrayLayout, TreeLayout
from jaxcluster.model.life import State
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import name_ranks
from jaxcluster.records.lastreport import Reports
from jaxcluster.wire.link import Event, Link, replies
from jaxcluster.wire.ops.agreement import Looked
from jaxcluster.wire.ops.cells import Interrupt
from jaxcluster.wire.ops.status import Stacks

ASK_S = 2.0  # for answers that a control channel gives at once


@checked
class Cluster(Lifecycle):
    """A running cluster of JAX processes, one rank each.

    Use it as a context manager to have it stopped at the end. ``start`` and ``attach`` make one.
    Thread-safe: a cell that is submitted during a restart runs after it.

    Attributes:
      world: its present ranks; a restart makes another one.
      spec: what was asked for.
      name: its name, for ``attach``.
      num_processes: how many ranks it has.
      life: what it is now (see ``life.State``).
      on_push: called, on the link's thread, with what ranks send unasked (widgets).
      kept: what its ranks have saved and no new process has yet.
      restored: what the last restart brought back; None before one, and after a clean one.
      recovered: what was done about the last finding or death; "" if nothing was yet.
      made_by: the numbers of this process's cells that have made names on the ranks.
      autosave: what its ranks had at the end of the last cell that ended well.
      past_reports: how its last cells went wrong, for ``%jaxcluster report``.
      asked: what it was started with, before the hosts decided what was left open.
      changing: held while it gets new processes, or its end.
    """

    def __init__(self, world: World, allocation: Allocation | None = None) -> None:
        super().__init__(world, allocation)
        self.recovered = ""
        self.made_by: dict[str, int] = {}
        self.past_reports = Reports(self.name)
        self.restored: Restored | None = None
        self.on_push: Callable[[Event[Any]], None] | None = None
        self._dispatcher = Dispatcher(self)
        self._delegate = delegation.Delegate(self)
        self._take(world)

    def _take(self, world: World) -> None:
        world.check = self.check_not_closed
        world.on_death = self._forget_recovery
        world.on_stopping = self._end_with_others
        world.on_message = self._delegate.on_message
        world.link.on_push = self._on_push
        self.world, self.num_processes = world, world.num_processes
        self.meter = Meter(world.link)  # for all that show what the ranks use
        self._dispatcher.begin()
        world.listen()

    # ------------------------------------------------------------------ its ranks

    @property
    def link(self) -> Link:
        """The ranks' own sockets."""
        return self.world.link

    @property
    def dead(self) -> dict[int, wire.Death]:
        """The ranks whose processes have ended, and why."""
        return self.world.dead

    @property
    def coordinator_died(self) -> str:
        """How JAX's coordination service has ended; "" while it serves."""
        return self.world.coordinator_died

    @property
    def is_broken(self) -> bool:
        """Whether no cell can run before a recovery."""
        return self.world.is_broken

    @property
    def client(self) -> Any:
        """An ``ipyparallel.Client`` on the same engines; engine id is rank.

        For what ipyparallel alone can do. Cells that it runs are not seen by jaxcluster.
        """
        return self.world.client

    def status(self) -> list[wire.RankState]:
        """What each rank is doing now, also during a cell."""
        return self.world.status()

    def resources(self, seconds: float = 0.5) -> dict[int, Sample]:
        """What each rank uses, by rank: of a processor over so many seconds, memory, GPUs.

        Answered during a cell too. A rank that gives no answer is missing. GPUs are told where
        ``nvidia-ml-py`` is installed beside the ranks.
        """
        self.check_not_closed()
        meter = Meter(self.link)
        meter.look(ASK_S)
        time.sleep(seconds)
        return meter.look(ASK_S)

    def look(self, launches: int = 0) -> Looked | None:
        """Who waits for whom, and so many of the last launches, also during a cell."""
        self.check_not_closed()
        return self.world.look(launches)

    def late(self) -> Late | None:
        """Who comes last into most launches that span processes, and by how much; None: nobody."""
        looked = self.look(lateness.LAUNCHES)
        return lateness.find(looked.agreed) if looked is not None else None

    def stacks(self) -> dict[int, wire.RankReport]:
        """Where each rank's threads are, also while it runs or hangs."""
        self.check_not_closed()
        ranks = range(self.num_processes)
        return replies(self.link.gather(ranks, Stacks(), timeout_s=ASK_S))

    def check_ranks(self, ranks: Sequence[int] | None) -> list[int]:
        """``ranks``, or all of them.

        Raises:
          UsageError: one of them does not exist.
        """
        return self.world.check_ranks(ranks)

    def logs(self, rank: int, lines: int | None = None) -> str:
        """A rank's log: what C code, subprocesses and the engine itself wrote."""
        return self.world.logs(rank, lines)

    # ------------------------------------------------------------------ life

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self.down:
            return f"<jaxcluster {self.name!r}: no processes, %jaxcluster restart starts them>"
        if self.closed:
            return f"<jaxcluster {self.name!r}: stopped>"
        devices = sum(len(r.devices) for r in self.record.devices)
        return (
            f"<jaxcluster {self.name!r}: {self.num_processes} processes, {devices} "
            f"{self.spec.platform} devices>"
        )

    def summary(self) -> str:
        """One line: ranks, devices per rank, platform, time."""
        return description.summary(self.condition, self.record, self.world.started_s)

    def restart(
        self,
        progress: Progress | None = None,
        *,
        clean: bool = False,
        when: str = "in a restart",
    ) -> str:
        """Give it new processes; returns in a line what was kept and what was lost.

        The variables of all ranks that live are saved first and restored on the new processes; a
        dead rank's successor takes those that all ranks share from a survivor. It takes the time of
        a start, plus a copy of all that the ranks hold, out and in. The stop button is heard
        meanwhile, and what was saved is kept until the new processes have it (see ``recovery``).

        Args:
          clean: keep nothing.
          when: when names were lost that are lost, as in "in cell [3]".

        Raises:
          RecoveryError: nothing could be saved; the old processes still run then.
          LaunchError: the new processes did not come up; what was saved is kept.
          CellInterrupted: it was stopped; the message says what the cluster is now.
        """
        return self._renew(progress, lambda: Wanted(clean, when))

    def _renew(self, progress: Progress | None, make: Callable[[], Wanted]) -> str:
        with self.changing:
            if not self.down:
                self.check_not_closed()
            if not self.world.is_ours:
                raise RecoveryError(
                    f"Cluster {self.name!r} was started elsewhere and can't be restarted from "
                    "here.",
                    "Restart it in the notebook that started it, or stop it and start another: "
                    "%jaxcluster stop",
                )
            renewal = self._renewal = Renewal(self, make())
            self.life.become(State.RESTARTING, only={State.RUNNING})
            self.life.become(State.REPLACING, self.life.why, only={State.DOWN})
            try:
                renewal.carry_through(progress)
            finally:
                self._renewal = None
                self.life.become(State.RUNNING, only={State.RESTARTING})
            self.restored = renewal.restored
        return self.recovered

    def resize(
        self,
        num_processes: int,
        mesh: Mapping[str, int] | None = None,
        progress: Progress | None = None,
        *,
        clean: bool = False,
    ) -> str:
        """Give it another number of ranks; returns in a line what was kept and what was lost.

        As ``restart``, with all variables: arrays that span processes are cut for the meshes of the
        devices that there are then, with the same axis names. Ranks that were there keep their own
        values; new ones get those that were equal on all. Hosts that are lost are left out, with
        what only their ranks had.

        Args:
          num_processes: how many ranks it is to have.
          mesh: the sizes of the meshes' axes by name, where several could take the change.
          clean: keep nothing.

        Raises:
          UsageError: it can't have so many, or ``mesh`` must say which axis takes the change.
            Nothing was changed.
          RecoveryError, LaunchError, CellInterrupted: as ``restart``.
        """

        def make() -> Wanted:
            # Under the lock: what there is now can't change any more.
            without_lost = bool(self.left.hosts)
            spec = resized(self.spec, num_processes, without_lost)
            if self.world.dead and not self.down and not without_lost:
                raise RecoveryError(
                    f"{name_ranks(self.world.dead).capitalize()} died, so the cluster can't be "
                    "resized.",
                    "%jaxcluster restart replaces the dead; then resize it.",
                )
            return Wanted(clean, "when it was resized", spec, mesh or {})

        return self._renew(progress, make)

    def ask_restart(self, *, clean: bool = False) -> str:
        """Have the process that has started it restart it; returns what was kept.

        This connection is of no use then: ``attach`` makes another.

        Raises:
          RecoveryError: there is no such process any more, or it could not do it.
        """
        self.check_not_closed()
        return delegation.ask_restart(self.world, clean, lambda: self.is_replaced)

    # ------------------------------------------------------------------ cells

    def run(
        self,
        source: str,
        *,
        ranks: Sequence[int] | None = None,
        timeout_s: float | None = None,
        execution_count: int | None = None,
        shown_ranks: Sequence[int] | None = None,
        on_output: Listener | None = None,
        on_notice: Callable[[str], None] | None = None,
        show: bool = True,
    ) -> CellRecord:
        """Run a cell on all ranks (or ``ranks``) and return when all have ended it.

        Args:
          source: IPython code.
          timeout_s: interrupt the ranks that are still in the cell after so many seconds.
          execution_count: the cell's number, for tracebacks and ``Out``.
          shown_ranks: whose file descriptors are read too; the first rank by default.
          on_output: called with each output and reply as it comes, on this thread.
          on_notice: told what the cell waits for.
          show: without ``on_output``: print what the first rank prints.

        Raises:
          CellFailed: it raised on some ranks. The others stop before their next launch; those that
            launch nothing are interrupted 2 s later.
          Divergence: its ranks were about to launch different programs. Nothing was launched.
          RankDied: a rank's process ended.
          RankHung: some ranks did not come back from C code.
        """
        on_output = on_output or (_print_first if show else None)
        prompt = here()
        talk = Labelled(prompt, _print_output) if prompt is not None else None
        options = CellOptions(
            ranks, timeout_s, execution_count, shown_ranks, on_output, on_notice, prompt=talk,
            is_waited_for=True,
        )  # fmt: skip
        return self._submit(source, options).wait()

    def submit(
        self,
        source: str,
        *,
        ranks: Sequence[int] | None = None,
        timeout_s: float | None = None,
        execution_count: int | None = None,
        shown_ranks: Sequence[int] | None = None,
        on_output: Listener | None = None,
        on_notice: Callable[[str], None] | None = None,
        cell_id: str = "",
        prompt: Labelled | None = None,
        post_mortem: bool = False,
        profile: Path | None = None,
        message: wire.CommMessage | None = None,
        buffers: Sequence[bytes] = (),
        script: wire.Script | None = None,
        is_waited_for: bool = False,
    ) -> RunningCell:
        """Like ``run``, without waiting: ``wait`` on what it returns.

        Args:
          cell_id: Jupyter's, for the panel.
          prompt: where questions of its ranks are put; None: they are refused.
          post_mortem: instead of running ``source`` look at the ranks' last errors.
          profile: the folder for the files of JAX's profiler, as for ``profile``.
          message, buffers: instead of running ``source``, the code of the cell that has opened the
            comm, pass on what a page has said on it.
          script: what is run, whose code ``source`` is ("" of a module). Its output is given to
            ``on_output`` and not kept. The ranks are of no use afterwards: none is replaced. See
            ``engine.mainscript``.
          is_waited_for: this process sends no other cell before this one has ended.
        """
        options = CellOptions(
            ranks, timeout_s, execution_count, shown_ranks, on_output, on_notice, cell_id, message,
            buffers, prompt, post_mortem, script, str(profile or ""), is_waited_for,
        )  # fmt: skip
        return self._submit(source, options)

    def profile(
        self,
        source: str,
        folder: str | Path | None = None,
        *,
        ranks: Sequence[int] | None = None,
        on_output: Listener | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> Path:
        """Run a cell under JAX's profiler on all ranks (or ``ranks``); returns the files' folder.

        Each rank writes to ``rank-N`` in it, on its own host: what xprof and Perfetto open.

        Args:
          folder: where the files go; a new one in the current directory by default.

        Raises:
          CellFailed, and all that ``run`` raises; also where a rank is being profiled already.
        """
        target = profiling.folder_of(folder)
        options = CellOptions(
            ranks,
            on_output=on_output or _print_first,
            on_notice=on_notice,
            profile=str(target),
        )
        self._submit(source, options).wait()
        return target

    def _submit(self, source: str, options: CellOptions) -> RunningCell:
        with contextlib.ExitStack() as on_its_way:
            with self.changing:
                cell, pressed = self._dispatcher.send(source, options, on_its_way)
            events.tell(cell)
        if pressed:
            cell.stop()
        return cell

    @property
    def last(self) -> CellRecord | None:
        """The record of the last cell."""
        return self._dispatcher.last

    @property
    def last_failed(self) -> CellRecord | None:
        """The last cell of this process that has failed on one of these ranks."""
        return self._dispatcher.last_failed

    @property
    def sent(self) -> list[RunningCell]:
        """The cells that this process has sent to these ranks, but for older ones that ended."""
        return self._dispatcher.sent

    @property
    def cells(self) -> list[RunningCell]:
        """The cells of this process that have not ended on all their ranks."""
        return self._dispatcher.cells

    def ensure_open(self) -> None:
        """Raise if no cell can run. Ranks that are lost are replaced first, if recovery is auto."""
        recovery.ensure_open(self)

    def recover(self, *, message: str = "", when: str = "") -> str:
        """After ranks were lost: what was done about it.

        Args:
          message: what has happened, for the exception if a user stops this.
          when: see ``restart``.

        Raises:
          CellInterrupted: it was stopped.
        """
        return recovery.recover(self, message=message, when=when)

    def checkpoint(self, name: str, folder: str | Path = "jaxcluster-checkpoints") -> str:
        """Save every rank's variables to disk, in ``folder/name``; returns what was saved.

        Raises:
          UsageError: a checkpoint can't be called so.
          RankError: a rank could not write its file.
        """
        from jaxcluster.cluster import checkpoints  # with numpy, as for ``push``

        self.check_not_closed()
        return checkpoints.save(self.world, name, folder)

    def restore(
        self,
        name: str,
        folder: str | Path = "jaxcluster-checkpoints",
        mesh: Mapping[str, int] | None = None,
    ) -> str:
        """Bind what a checkpoint has saved, on all ranks or on none; returns what came back.

        It may be another cluster's, also with another number of ranks: see ``resize``.

        Args:
          mesh: the sizes of the meshes' axes by name, where several could take the change.

        Raises:
          UsageError: there is no checkpoint of that name, or ``mesh`` must say which axis takes the
            change.
          RecoveryError: it does not fit this cluster, or can't be read. Nothing was restored.
        """
        from jaxcluster.cluster import checkpoints  # with numpy, as for ``push``

        self.check_not_closed()
        return checkpoints.restore(self.world, name, folder, mesh)

    def restore_last(self) -> str:
        """Bind on all ranks, or on none, what they had when the last cell ended well.

        Raises:
          UsageError: nothing was saved then: ``autosave`` is off, or why it was not.
        """
        from jaxcluster.cluster import checkpoints  # with numpy, as for ``push``

        self.check_not_closed()
        self.autosave.wait()
        if self.autosave.kept is None:
            raise UsageError(
                f"No cell's end is saved{self.autosave.why_not and ': '}{self.autosave.why_not}.",
                "%jaxcluster autosave on saves each from now on.",
            )
        when = f"when the end of cell [{self.autosave.cell}] was restored"
        return checkpoints.restore_from(self.world, self.autosave.kept, when)

    def set_autosave(self, *, is_on: bool) -> None:
        """Save the ranks' variables after each cell, in the background, or no longer."""
        self.autosave.is_on = is_on
        if not is_on:
            self.autosave.wait()
            self.autosave.forget()

    def history(self) -> History:
        """The cells that its ranks have run, whoever has sent them, oldest first.

        Also while a cell runs, and of ranks that have died. What ranks keep is bounded.
        """
        self.check_not_closed()
        return history.Reader(self.world).look()

    def outputs(self, number: int | None = None) -> CellRecord:
        """The output of its ranks so far, in a cell that anybody has run.

        Args:
          number: as in ``history``; the last cell by default.

        Raises:
          UsageError: there is no such cell.
        """
        self.check_not_closed()
        return history.record_of(self.world, history.find(self.world, number))

    def interrupt(self, ranks: Sequence[int] | None = None) -> list[int]:
        """Interrupt whatever the ranks run now; returns those that were running something.

        While it is being given new processes it is a press of the stop button.
        """
        if self.is_restarting:
            self.press_stop()
            return []
        self.check_not_closed()
        answers = self.link.gather(self.check_ranks(ranks), Interrupt(None), timeout_s=ASK_S)
        return sorted(r for r, event in answers.items() if event.op == "reply" and event.body)

    # ------------------------------------------------------------------ values

    def push(self, values: Mapping[str, Any], ranks: Sequence[int] | None = None) -> None:
        """Bind names on the ranks. See ``jaxcluster.cluster.transfer.push``."""
        from jaxcluster.cluster import transfer  # with numpy, which a shell command has no use for

        transfer.push(self.world, values, ranks)

    def pull(self, name: str) -> Any:
        """A rank-0 name's value, arrays whole, as numpy. See ``transfer.pull``."""
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

    # ------------------------------------------------------------------ supervision

    def _on_push(self, event: Event[Any]) -> None:
        if self.on_push is not None:
            self.on_push(event)

    def _forget_recovery(self) -> None:
        """What was done about an earlier death says nothing of this one. Any thread."""
        self.recovered = ""


def _print_first(record: CellRecord, what: wire.RankOutput | wire.CellReply) -> None:
    """Show the first rank's text as a script's own."""
    if isinstance(what, wire.RankOutput) and what.rank == record.ranks[0]:
        _print_output(what)


def _print_output(output: wire.RankOutput) -> None:
    if output.kind == "stream":
        print(output.content["text"], end="", flush=True)
    elif output.kind in ("display_data", "execute_result"):
        print(output.content["data"].get("text/plain", ""), flush=True)
