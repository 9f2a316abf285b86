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
        self._waiting: list[Relayed] = []
        self._under_way = 0
        self._lock = threading.RLock()

    def drop(self, relayed: Relayed) -> None:
        """Nobody will hear what waits for this comm's rank: the page waits no longer."""
        with self._lock:
            for said in relayed.waiting:
                for heard in said.heard:
                    heard.set()
            relayed.waiting.clear()
            if relayed in self._waiting:
                self._waiting.remove(relayed)

    def say(self, relayed: Relayed, said: Said) -> None:
        """Pass it on, and let the page wait for a while, as it does for a kernel that is busy."""
        heard = threading.Event()
        said.heard.append(heard)
        with self._lock:
            relayed.waiting.append(said)
            if relayed not in self._waiting:
                self._waiting.append(relayed)
        self._send_waiting()
        try:
            if not heard.wait(HEARD_S):
                self._tell_busy(relayed, said)
        except KeyboardInterrupt:
            if said.running is not None:
                said.running.stop()

    def _send_waiting(self) -> None:
        """Send what can be: of one comm a message at a time, so that updates become one."""
        with self._lock:
            for relayed in list(self._waiting):
                if self._under_way >= MOST_MESSAGES:
                    return
                if relayed.is_under_way:
                    continue
                said = relayed.waiting.popleft()
                while relayed.waiting and said.joins(relayed.waiting[0]):
                    said.join(relayed.waiting.popleft())
                if not relayed.waiting:
                    self._waiting.remove(relayed)
                relayed.is_under_way = True
                self._under_way += 1
                threading.Thread(
                    target=self._carry, args=(relayed, said), name="jaxcluster-widget", daemon=True
                ).start()

    def _carry(self, relayed: Relayed, said: Said) -> None:
        """One message to the ranks, to the end of what it does there. On a thread of its own."""
        home, is_headed = relayed.home, [not _is_shared(relayed)]

        def listen(record: CellRecord, what: wire.RankOutput | wire.CellReply) -> None:
            if what.rank != relayed.rank:
                return
            if isinstance(what, wire.CellReply):
                self._is_through(relayed, said)
                return
            if not is_headed[0]:
                is_headed[0] = True
                self._below.print(home, "stdout", f"── {name_ranks([relayed.rank])} ──\n")
            self._below.show(home, what)

        assert relayed.comm is not None
        message = wire.CommMessage(
            said.kind,
            relayed.rank,
            relayed.comm.comm_id,
            relayed.twin,
            said.data,
            said.metadata,
            said.target_name,
        )
        try:
            said.running = self.cluster.submit(
                home.source,
                message=message,
                buffers=said.buffers,
                execution_count=home.number,
                ranks=list(home.ranks) or [relayed.rank],
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
            self._is_through(relayed, said)
            with self._lock:
                self._under_way -= 1
            self._send_waiting()

    def _is_through(self, relayed: Relayed, said: Said) -> None:
        """The widget's own rank has done it; the others may still have to."""
        with self._lock:
            if not said.heard:
                return
            for heard in said.heard:
                heard.set()
            said.heard = []
            relayed.is_under_way = False
        self._send_waiting()

    def _tell_busy(self, relayed: Relayed, said: Said) -> None:
        """Where a rank is in something else, the page does not wait, and the user hears why."""
        try:
            states = {state.rank: state for state in self.cluster.status()}
        except JaxClusterError:
            return
        state, running = states.get(relayed.rank), said.running
        if state is None or state.state != "running" or not said.heard:
            return
        if running is None or state.seq != running.record.seq:
            self._below.print(
                relayed.home,
                "stdout",
                f"{begin_ranks([relayed.rank])} is in cell {formatting.cell(state)}: changes to "
                "this widget follow when that has ended.\n",
            )


def _is_shared(relayed: Relayed) -> bool:
    """Whether it must be said which rank puts something out below a widget."""
    ranks = relayed.home.ranks
    return bool(ranks) and relayed.rank != ranks[0]
