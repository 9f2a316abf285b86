"""Hands out cells, and knows what has become of those that were sent."""

from __future__ import annotations

import contextlib
import time

from jaxcluster import wire
from jaxcluster.cluster import stopbutton
from jaxcluster.cluster.owner import Owner
from jaxcluster.cluster.running import CellOptions, RunningCell
from jaxcluster.cluster.turns import who_we_are
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
        self._count = 0

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
        """A cell on its way to its ranks.

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
        if options.script is None:
            rewrite.check_depth(source)
            source = rewrite.with_all_lines(source)
        chosen = world.check_ranks(options.ranks)
        shown = chosen[:1]
        if options.shown_ranks is not None:
            shown = world.check_ranks(options.shown_ranks)
        message = options.message
        is_cell = message is None and not options.post_mortem
        turn = world.turns.make(chosen, is_waited_for=options.is_waited_for, is_skippable=is_cell)
        self._count += is_cell
        count = options.execution_count
        request = wire.CellRequest(
            turn=turn,
            source=source,
            execution_count=self._count if count is None else count,
            shown_ranks=shown,
            cell_id=options.cell_id,
            message=message,
            post_mortem=options.post_mortem,
            script=options.script,
            profile=str(options.profile or ""),
            sent_ns=time.time_ns(),
            who=who_we_are(),
        )
        record = CellRecord(
            turn.seq,
            request.execution_count,
            source,
            chosen,
            cell_id=options.cell_id,
            sent_ns=request.sent_ns,
            shown=options.shown_ranks or (),
        )
        sink = Sink()
        pressed = on_its_way.enter_context(stopbutton.held())
        each = dict.fromkeys(chosen, request)
        ids = world.link.request_each(each, buffers=options.buffers, sink=sink)
        if is_cell:
            self._failed, self.last = self.last_failed, record
        cell = RunningCell(self._cluster, record, sink, ids, options)
        self._sent = [c for c in self._sent if not c.done] + [cell]
        return cell, pressed

    @property
    def last_failed(self) -> CellRecord | None:
        """The last cell of this process that has failed on one of these ranks."""
        return self.last if self.last is not None and self.last.errors else self._failed

    @property
    def cells(self) -> list[RunningCell]:
        """The cells of this process that have not ended on all their ranks."""
        return [cell for cell in self._sent if not cell.done]
