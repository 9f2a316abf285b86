"""Hands out cells: which may run, in whose turn, and what has become of those that were sent."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence

from jaxcluster import wire
from jaxcluster.allocation.turns import Turn, who_we_are
from jaxcluster.cluster import stopbutton
from jaxcluster.cluster.action_runner import Owner
from jaxcluster.cluster.running import CellOptions, RunningCell
from jaxcluster.errors import RESTART_HINT, Divergence, NoCluster, RankHung
from jaxcluster.model import rewrite
from jaxcluster.model.outputs import CellRecord
from jaxcluster.plan.spec import check_seconds
from jaxcluster.wire.link import Sink


class Dispatcher:
    """Hands out the cells of one cluster of this process.

    Attributes:
      last: the record of the last cell.
    """

    def __init__(self, cluster: Owner) -> None:
        self.last: CellRecord | None = None
        self._cluster = cluster
        self._failed: CellRecord | None = None
        self._sent: list[RunningCell] = []

    def begin(self) -> None:
        """The ranks are new ones: of the cells of the old ones nothing is waited for."""
        self._sent = []

    @property
    def sent(self) -> list[RunningCell]:
        """The cells that were sent to these ranks, but for older ones that ended."""
        return list(self._sent)

    def send(
        self, source: str, options: CellOptions, on_its_way: contextlib.ExitStack
    ) -> tuple[RunningCell, list[None]]:
        """A cell on its way to its ranks. Another notebook's turn is waited for.

        Args:
          on_its_way: while it is open, no stop button is raised; what is returned beside the cell
            is not empty once it was pressed.

        Raises:
          JaxClusterError: no cell may run now; why is said.
        """
        self._cluster.ensure_open()
        world = self._cluster.world
        if options.timeout_s is not None:
            check_seconds("A cell's time limit", options.timeout_s, "%%spmd --timeout 60")
        if options.stall_s is not None:
            check_seconds("stall_s", options.stall_s, 'cluster.run("...", stall_s=900)')
        if options.script is None:
            rewrite.check_depth(source)
            source = rewrite.with_all_lines(source)
        chosen = world.check_ranks(options.ranks)
        shown = chosen[:1]
        if options.shown_ranks is not None:
            shown = world.check_ranks(options.shown_ranks)
        number, cell_id = options.execution_count, options.cell_id
        self._refuse_if_stuck(chosen)
        self._refuse_if_diverged()
        message = options.message
        if options.prompt is not None and rewrite.may_ask(source):
            world.meet()
        sink = Sink()
        with self._turn(chosen, options.on_notice) as seq:
            self._cluster.lineage.sent(seq)
            world.own_cells.add(int(seq))
            count, sent_ns = seq if number is None else number, time.time_ns()
            request = functools.partial(
                wire.CellRequest,
                seq=seq,
                source=source,
                execution_count=count,
                ranks=chosen,
                shown_ranks=shown,
                cell_id=cell_id,
                message=message,
                post_mortem=options.post_mortem,
                script=options.script,
                profile=str(options.profile or ""),
                sent_ns=sent_ns,
                who=who_we_are(),
                settled=min((c.record.seq for c in self.cells), default=seq) - 1,
            )
            # Mostly the cell before was one on all ranks: then one message is for all of them.
            made = {n: request(after=n) for n in set(seq.after.values())}
            each = {r: made[seq.after[r]] for r in chosen}
            pressed = on_its_way.enter_context(stopbutton.held())
            ids = world.link.request_each(each, buffers=options.buffers, sink=sink)
        record = CellRecord(
            seq,
            count,
            source,
            chosen,
            cell_id=cell_id,
            sent_ns=sent_ns,
            shown=options.shown_ranks or (),
            earlier=[cell.record for cell in self.cells],
        )
        if message is None and not options.post_mortem:
            self._failed, self.last = self.last_failed, record
        elif options.post_mortem:
            world.looks.add(int(seq))
        cell = RunningCell(self._cluster, record, sink, ids, options)
        cell.runner.on_notice, cell.talk.prompt = options.on_notice, options.prompt
        self._sent = [c for c in self._sent if not c.done] + [cell]
        return cell, pressed

    @contextlib.contextmanager
    def _turn(self, ranks: Sequence[int], say: Callable[[str], None] | None) -> Iterator[Turn]:
        """The turn to hand out a cell. Where there is none any more: why, as is known by then."""
        with contextlib.ExitStack() as stack:
            try:
                turn = stack.enter_context(self._cluster.world.turns.take(ranks, say))
            except NoCluster:
                self._cluster.ensure_open()
                raise
            yield turn

    @property
    def last_failed(self) -> CellRecord | None:
        """The last cell of this process that has failed on one of these ranks."""
        return self.last if self.last is not None and self.last.errors else self._failed

    @property
    def cells(self) -> list[RunningCell]:
        """The cells of this process that have not ended on all their ranks."""
        return [cell for cell in self._sent if not cell.done]

    def _refuse_if_diverged(self) -> None:
        """No number may be computed by mismatched collectives."""
        divergence = self._cluster.world.divergence
        if divergence is not None:
            raise Divergence(
                f"The ranks have diverged, so no cell can run.\n{divergence}",
                RESTART_HINT,
                divergence,
            )

    def _refuse_if_stuck(self, ranks: Sequence[int]) -> None:
        """A rank that did not answer an interrupt must have come back before the next cell."""
        given_up = {r for c in self._sent for r in c.core.silent if r in ranks}
        if not given_up:
            return
        still = ("running", "silent")
        busy = [s for s in self._cluster.world.status() if s.rank in given_up and s.state in still]
        if busy:
            places = ", ".join(
                f"rank {s.rank} in cell [{s.cell}] line {s.line}"
                if s.state == "running"
                else f"rank {s.rank}, which is not responding"
                for s in busy
            )
            raise RankHung(
                f"Still running after an interrupt: {places}.",
                f"%jaxcluster interrupt tries again. {RESTART_HINT}",
                [s.rank for s in busy],
            )
        for cell in self._sent:
            cell.core.silent = ()  # they have come back
