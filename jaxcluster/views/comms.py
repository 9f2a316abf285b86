"""The notebook's side of comms that ranks open (see ``jaxcluster.rank.comms``).

Each has one of the same id with the page. The notebook knows the state of each widget, so it can
answer a page that is loaded again. A user's action on a widget runs as a cell on the ranks of the
widget's cell. Its output is shown below the widget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import comm
from comm.base_comm import BaseComm

from jaxcluster import wire
from jaxcluster.cluster import Cluster
from jaxcluster.errors import CellFailed, CellInterrupted, JaxClusterError
from jaxcluster.model.outputs import CellRecord
from jaxcluster.wire.link import Event

CONTROL = "jupyter.widget.control"
WIDGET = "jupyter.widget"  # ipywidgets' target
UPDATES = ("update", "echo_update")

Message = dict[str, Any]  # of Jupyter's, or its content


class Relayed(BaseComm):
    """A comm with the page, whose messages stand under the cells that the ranks send them in.

    Not ipykernel's: that gives the page's messages to the shell that sent last on the comm.

    Attributes:
      parent: the page's message under which the next one is sent.
      is_left: the page was loaded again, and shows nothing more below the cell that opened it.
    """

    def __init__(
        self, cluster: Cluster, kernel: Any, push: wire.CommPush, buffers: list[bytes]
    ) -> None:
        self._cluster, self._kernel, self._opened = cluster, kernel, push
        self._world = cluster.world
        self.parent, self.is_left = push.parent, False
        # A widget's state; it is empty for other comms. ipywidgets sends all of it in the message
        # that opens the comm, and parts in every update. Binary values are buffers beside it.
        self._state: Message = {}
        self._buffers: dict[tuple[str | int, ...], bytes] = {}
        self.hear(push.data, buffers)
        super().__init__(
            push.target_name or "comm",
            push.data,
            push.metadata,
            buffers,
            push.comm_id,
            target_module=push.target_module,
        )

    def hear(self, data: Any, buffers: Sequence[bytes]) -> None:
        """A message that goes over it, in either direction, may have a part of its state."""
        if self._opened.target_name != WIDGET or data.get("method", "update") not in UPDATES:
            return
        new = data.get("state") or {}
        self._state |= new
        self._buffers = {at: kept for at, kept in self._buffers.items() if at[0] not in new}
        for path, buffer in zip(data.get("buffer_paths") or (), buffers, strict=False):
            self._buffers[tuple(path)] = buffer

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        self._send(msg_type, content, self.parent, metadata=metadata, buffers=buffers)

    def _send(self, kind: str, content: Message, parent: Message, **more: Any) -> None:
        """Send the page a message, as the answer to one of its messages."""
        kernel, topic = self._kernel, kind.encode()
        kernel.session.send(kernel.iopub_socket, kind, content, parent=parent, ident=topic, **more)

    # The base class's handlers trigger IPython's pre_execute and post_execute. These would show the
    # half-made figures of a cell that runs.
    def handle_msg(self, msg: Message) -> None:
        self._do("comm_msg", msg)

    def handle_close(self, msg: Message) -> None:
        self._do("comm_close", msg)

    def _do(self, kind: str, message: Message) -> None:
        """Do what the page says as a cell on the ranks, to its end.

        On the main thread, or on a subshell's. The page sends no more of the widget meanwhile.
        """
        opened, data = self._opened, message["content"].get("data") or {}
        buffers = [bytes(buffer) for buffer in message.get("buffers") or ()]
        if self._state and data.get("method") == "request_state":
            paths, values = list(self._buffers), list(self._buffers.values())
            data = {"method": "update", "state": self._state, "buffer_paths": paths}
            content = {"data": data, "comm_id": self.comm_id}
            self._send("comm_msg", content, message, buffers=values)
            return
        self.hear(data, buffers)
        # Lab's log has what comes under a message of the page, while the kernel answers it.
        parent = message if self.is_left else opened.parent

        def tell(text: str, name: str = "stderr") -> None:
            self._send("stream", {"name": name, "text": text.rstrip("\n") + "\n"}, parent)

        def listen(record: CellRecord, what: wire.RankOutput | wire.CellReply) -> None:
            if not isinstance(what, wire.RankOutput) or what.kind == "clear_output":
                return
            if what.rank == opened.rank:
                self._send(what.kind, what.content, parent)

        if self._cluster.world is not self._world:
            tell(
                f"The widgets of cell [{opened.number}] are no longer live: the ranks have new "
                "processes. Run the cell again.",
                "stdout",
            )
            return
        try:
            self._cluster.submit(
                "",
                message=wire.CommMessage(kind, opened.twin, data, message.get("metadata") or {}),
                buffers=buffers,
                execution_count=opened.number,
                ranks=opened.ranks,
                shown_ranks=[opened.rank],
                on_output=listen,
                on_notice=tell,
            ).wait()
        except CellFailed as error:
            tell("\n".join(error._render_traceback_()))
        except (JaxClusterError, CellInterrupted) as error:
            tell(str(error))


def _refuse(asking: Any, message: Message) -> None:
    """A page that is loaded again asks ipywidgets for all models: it is to ask each model."""
    for one in list(comm.get_comm_manager().comms.values()):
        if isinstance(one, Relayed):
            one.is_left = True
    asking.close()


def relay_comms(cluster: Cluster, shell: Any) -> None:
    """Show what a cluster's ranks say on comms on the page of a notebook's ``shell``."""

    def handle(event: Event[wire.CommPush]) -> None:
        """Pass on what a rank sends. On the link's thread."""
        push, buffers = event.body, [bytes(buffer) for buffer in event.buffers]
        manager = comm.get_comm_manager()
        relayed = manager.comms.get(push.comm_id)
        if push.kind == "comm_open":
            import ipywidgets  # noqa: F401 (it registers the target that is taken over here)

            manager.register_target(CONTROL, _refuse)
            Relayed(cluster, shell.kernel, push, buffers)
        elif isinstance(relayed, Relayed):
            relayed.parent = push.parent
            if push.kind == "comm_close":
                relayed.close(push.data, push.metadata, buffers)
            else:
                relayed.hear(push.data, buffers)
                relayed.send(push.data, push.metadata, buffers)

    if cluster.on_push is None and hasattr(shell, "kernel"):
        cluster.on_push = handle
