"""The notebook's side of comms that ranks open (see ``jaxcluster.engine.comms``).

Each has one of the same id with the page. The notebook knows the state of each widget, so it can
answer a page that is loaded again. What a user does to a widget is a cell on the ranks that ran the
widget's cell. Its output is shown below the widget.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import comm
from comm.base_comm import BaseComm

from jaxcluster import wire
from jaxcluster.cluster import Cluster
from jaxcluster.errors import CellFailed, CellInterrupted, JaxClusterError
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import name_ranks
from jaxcluster.wire.link import Event

CONTROL = "jupyter.widget.control"
WIDGET = "jupyter.widget"  # ipywidgets' target

Message = dict[str, Any]  # of Jupyter's, or its content


class Relayed(BaseComm):
    """A comm with the page, whose messages stand under the cells that the ranks send them in.

    Not ipykernel's: that gives the page's messages to the shell that sent last on the comm.

    Attributes:
      opened: what the rank has opened it with.
      world: its ranks' processes.
      is_left: the page was loaded again, and shows nothing more below the cell that opened it.
      state: a widget's; of another comm nothing is known. ipywidgets sends all of it in the message
        that opens the comm, and parts of it in every update. Binary values are buffers beside it.
      buffers: these, by their places in the state.
    """

    def __init__(self, relay: CommRelay, push: wire.CommPush, buffers: Sequence[Any]) -> None:
        self._relay, self._parent = relay, push.parent
        self.opened, self.world, self.is_left = push, relay.cluster.world, False
        self.state: Message = {}
        self.buffers: dict[tuple[str | int, ...], bytes] = {}
        if push.target_name == WIDGET:
            self._take(push.data, buffers)
        super().__init__(
            push.target_name or "comm",
            push.data,
            push.metadata,
            list(buffers),
            push.comm_id,
            target_module=push.target_module,
        )

    def _take(self, data: Message, buffers: Sequence[Any]) -> None:
        """A part of a widget's state."""
        new = data.get("state") or {}
        self.state |= new
        self.buffers = {at: kept for at, kept in self.buffers.items() if at[0] not in new}
        for path, buffer in zip(data.get("buffer_paths") or (), buffers, strict=False):
            self.buffers[tuple(path)] = bytes(buffer)

    def heard(self, data: Any, buffers: Sequence[Any]) -> None:
        """A message that went over it, in either direction."""
        is_update = isinstance(data, dict) and data.get("method") in ("update", "echo_update")
        if self.state and is_update:
            self._take(data, buffers)

    def pass_on(self, push: wire.CommPush, buffers: list[bytes]) -> None:
        """Say to the page what the rank says."""
        self._parent = push.parent
        if push.kind == "comm_close":
            self.close(push.data, push.metadata, buffers)
        else:
            self.heard(push.data, buffers)
            self.send(push.data, push.metadata, buffers)

    def answer(self, message: Message) -> None:
        """Tell a page that asks for it the whole state."""
        paths, buffers = list(self.buffers), list(self.buffers.values())
        data = {"method": "update", "state": self.state, "buffer_paths": paths}
        self._relay.send("comm_msg", {"data": data, "comm_id": self.comm_id}, message, buffers)

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        self._relay.send(msg_type, content, self._parent, buffers, metadata)

    # Around those of the base class IPython's pre_execute and post_execute are triggered, which
    # would show the half-made figures of a cell that runs.
    def handle_msg(self, msg: Message) -> None:
        self._relay.hear(self, "comm_msg", msg)

    def handle_close(self, msg: Message) -> None:
        self._relay.hear(self, "comm_close", msg)


class CommRelay:
    """Gives each comm of a cluster's ranks one of the same id with the page.

    Args:
      shell: IPython's, of a notebook's kernel.
    """

    def __init__(self, cluster: Cluster, shell: Any) -> None:
        self.cluster = cluster
        self._kernel = shell.kernel
        self.comms: dict[str, Relayed] = {}
        cluster.on_push = self.handle

    def handle(self, event: Event[wire.CommPush]) -> None:
        """Pass on what a rank sends. On the link's thread."""
        push, buffers = event.body, [bytes(buffer) for buffer in event.buffers]
        if push.kind == "comm_open":
            if not self.comms:
                self._take_control()
            self.comms[push.comm_id] = Relayed(self, push, buffers)
        elif (relayed := self.comms.get(push.comm_id)) is not None:
            if push.kind == "comm_close":
                del self.comms[push.comm_id]
            relayed.pass_on(push, buffers)

    def _take_control(self) -> None:
        """Have a page that is loaded again ask each model for its state.

        It first asks ipywidgets for all of them, which knows nothing of the ranks'.
        """
        import ipywidgets  # noqa: F401 (it registers the target that is taken over here)

        _relays.add(self)
        comm.get_comm_manager().register_target(CONTROL, _refuse)

    def hear(self, relayed: Relayed, kind: str, message: Message) -> None:
        """Do what the page says on a comm, as a cell on the ranks, to its end.

        On the main thread, or on a subshell's. The page sends no more of the widget meanwhile.
        """
        content = message["content"]
        data, opened = content.get("data") or {}, relayed.opened
        buffers = [bytes(buffer) for buffer in message.get("buffers") or ()]
        if relayed.state and data.get("method") == "request_state":
            relayed.answer(message)
            return
        relayed.heard(data, buffers)
        # Lab's log has what comes under a message of the page, while the kernel answers it.
        parent = message if relayed.is_left else opened.parent

        def show(kind: str, content: Message) -> None:
            if kind != "clear_output":
                self.send(kind, content, parent)

        def tell(text: str, name: str = "stderr") -> None:
            show("stream", {"name": name, "text": text.rstrip("\n") + "\n"})

        head = "" if opened.rank == opened.ranks[0] else f"── {name_ranks([opened.rank])} ──"

        def listen(record: CellRecord, what: wire.RankOutput | wire.CellReply) -> None:
            nonlocal head
            if what.rank == opened.rank and isinstance(what, wire.RankOutput):
                if head:
                    tell(head, "stdout")
                head = ""
                show(what.kind, what.content)

        if kind == "comm_close":
            self.comms.pop(relayed.comm_id, None)
        if self.cluster.world is not relayed.world:
            if kind != "comm_close":
                tell(
                    f"The widgets of cell [{opened.number}] are no longer live: the ranks have new "
                    "processes. Run the cell again.",
                    "stdout",
                )
            return
        try:
            self.cluster.submit(
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

    def send(
        self,
        kind: str,
        content: Message,
        parent: Message,
        buffers: Any = None,
        metadata: Any = None,
    ) -> None:
        """Send the page a message, under one of its own."""
        self._kernel.session.send(
            self._kernel.iopub_socket,
            kind,
            content,
            metadata=metadata or {},
            parent=parent,
            ident=kind.encode(),
            buffers=buffers,
        )


_relays: weakref.WeakSet[CommRelay] = weakref.WeakSet()


def _refuse(opened: Any, message: Message) -> None:
    """A page that is loaded again asks for all models: it is to ask each."""
    for relay in list(_relays):
        for relayed in list(relay.comms.values()):
            relayed.is_left = True
    opened.close()


def relay_comms(cluster: Cluster, shell: Any) -> None:
    """Show what a cluster's ranks say on comms on the page of a notebook's ``shell``."""
    if cluster.on_push is None and hasattr(shell, "kernel"):
        CommRelay(cluster, shell)
