"""What a page says on the comms of ranks, on its way to them: a few messages at once.

A message is a cell on the ranks of the widget's cell. Of one comm they go one at a time, so that
updates that come meanwhile become one.
"""

from __future__ import annotations

import threading
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster import Cluster
from jaxcluster.errors import CellFailed, CellInterrupted, JaxClusterError
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import begin_ranks, name_ranks
from jaxcluster.views import formatting
from jaxcluster.views.relayed import Below, Relayed, Said

HEARD_S = 2.0  # that the page waits for what it has said: meanwhile it gathers what comes next
MOST_MESSAGES = 8  # on their way to ranks at once, for all widgets of a notebook


class Outbox:
    """Sends what the page says to the ranks. Any thread.

    Args:
      below: where its output is shown.
      log: the kernel's.
    """

    def __init__(self, cluster: Cluster, below: Below, log: Any) -> None:
        self.cluster = cluster
        self._below = below
        self._log = log
        self._places = threading.BoundedSemaphore(MOST_MESSAGES)
        self._lock = threading.RLock()

    def drop(self, relayed: Relayed) -> None:
        """Nobody will hear what waits for this comm's rank: the page waits no longer."""
        with self._lock:
            for said in relayed.waiting:
                said.is_through()
            relayed.waiting.clear()

    def say(self, relayed: Relayed, said: Said) -> None:
        """Pass it on, and let the page wait for a while, as it does for a kernel that is busy."""
        heard = threading.Event()
        said.heard.append(heard)
        with self._lock:
            relayed.waiting.append(said)
            is_first, relayed.is_under_way = not relayed.is_under_way, True
        if is_first:
            threading.Thread(
                target=self._carry_all, args=(relayed,), name="jaxcluster-widget", daemon=True
            ).start()
        try:
            if not heard.wait(HEARD_S):
                self._tell_busy(relayed, said)
        except KeyboardInterrupt:
            if said.running is not None:
                said.running.stop()

    def _carry_all(self, relayed: Relayed) -> None:
        """A comm's messages, one at a time, so that updates become one. On a thread of its own."""
        while True:
            with self._places:
                with self._lock:
                    if not relayed.waiting:
                        relayed.is_under_way = False
                        return
                    said = relayed.waiting.popleft()
                    while relayed.waiting and said.joins(relayed.waiting[0]):
                        said.join(relayed.waiting.popleft())
                self._carry(relayed, said)

    def _carry(self, relayed: Relayed, said: Said) -> None:
        """One message to the ranks, to the end of what it does there."""
        home, ranks = relayed.home, relayed.home.ranks
        is_headed = not ranks or relayed.rank == ranks[0]  # or it is said whose output that is

        def listen(record: CellRecord, what: wire.RankOutput | wire.CellReply) -> None:
            nonlocal is_headed
            if what.rank != relayed.rank:
                return
            if isinstance(what, wire.CellReply):
                said.is_through()  # the others may still have to do it
                return
            if not is_headed:
                is_headed = True
                self._below.print(home, "stdout", f"── {name_ranks([relayed.rank])} ──\n")
            self._below.show(home, what)

        assert relayed.comm is not None
        id, twin = relayed.comm.comm_id, relayed.twin
        message = wire.CommMessage(
            said.kind, relayed.rank, id, twin, said.data, said.metadata, said.target_name
        )
        try:
            said.running = self.cluster.submit(
                home.source,
                message=message,
                buffers=said.buffers,
                execution_count=home.number,
                ranks=list(ranks) or [relayed.rank],
                shown_ranks=[relayed.rank],
                on_output=listen,
                on_notice=lambda text: self._below.print(home, "stderr", text),
            )
            said.running.wait()
        except CellFailed as error:
            self._below.print(home, "stderr", "\n".join([*error._render_traceback_(), ""]))
        except (JaxClusterError, CellInterrupted) as error:
            self._below.print(home, "stderr", f"{error}\n")
        except Exception:
            self._log.exception("jaxcluster: a message of a widget")
        finally:
            said.is_through()

    def _tell_busy(self, relayed: Relayed, said: Said) -> None:
        """Where a rank is in something else, the page does not wait, and the user hears why."""
        try:
            states = {state.rank: state for state in self.cluster.status()}
        except JaxClusterError:
            return
        state, running = states.get(relayed.rank), said.running
        if state is None or state.state != "running" or all(heard.is_set() for heard in said.heard):
            return
        if running is None or state.seq != running.record.seq:
            self._below.print(
                relayed.home,
                "stdout",
                f"{begin_ranks([relayed.rank])} is in cell {formatting.cell(state)}: changes to "
                "this widget follow when that has ended.\n",
            )
