"""One comm of a rank, as the notebook knows it: its cell, its state, its end with the page."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from comm.base_comm import BaseComm

from jaxcluster import wire

Message = dict[str, Any]  # of Jupyter's, or its content
Hear = Callable[["Relayed", str, Message], None]
OF_IPYWIDGETS = ("@jupyter-widgets/base", "@jupyter-widgets/controls", "@jupyter-widgets/output")


@dataclass
class Home:
    """The cell that opened comms: what they put out is shown below it.

    Attributes:
      parent: the message that ran it.
      latest: what the page has said last.
      is_left: the page was loaded again, and shows nothing more below that cell.
      waiting: what the page has said, on its way to the ranks one after the other.
    """

    parent: Message
    number: int = 0
    source: str = ""
    ranks: Sequence[int] = ()
    told_dead: bool = False
    is_left: bool = False
    latest: Message | None = None
    waiting: deque[Said] = field(default_factory=deque)
    is_under_way: bool = False


@dataclass
class Said:
    """What the page has said on a comm."""

    relayed: Relayed
    kind: str
    data: Any
    metadata: Message
    buffers: list[bytes]
    is_done: threading.Event = field(default_factory=threading.Event)

    @property
    def is_update(self) -> bool:
        is_plain = self.kind == "comm_msg" and not self.buffers and isinstance(self.data, dict)
        return is_plain and self.data.get("method") == "update"

    def joins(self, later: Said) -> bool:
        """Whether one message can say both: two updates of a widget's state."""
        return self.relayed is later.relayed and self.is_update and later.is_update

    def join(self, later: Said) -> None:
        self.data = self.data | {"state": self.data["state"] | later.data["state"]}
        later.is_done = self.is_done


class Relayed(BaseComm):
    """A comm with the page, whose messages stand under a cell of their own.

    Not ipykernel's: that gives the page's messages to the shell that sent last on the comm.

    Attributes:
      state: a widget's; of another comm nothing is known.
      dead: why its rank says nothing more.
    """

    def __init__(
        self, kernel: Any, hear: Hear, home: Home, world: Any, push: wire.CommPush, buffers: Any
    ) -> None:
        self._kernel, self._hear = kernel, hear
        self.home, self.parent, self.world = home, home.parent, world
        self.rank, self.twin, self.dead = push.rank, push.twin, ""
        is_widget = push.target_name == wire.WIDGET
        self.state = wire.with_buffers(wire.plain(push.data), buffers) if is_widget else {}
        super().__init__(
            push.target_name or "comm",
            push.data,
            push.metadata,
            buffers,
            push.comm_id,
            target_module=push.target_module,
        )

    @property
    def is_two_way(self) -> bool:
        """Whether a user may have something to do to it: a bar or a text has nothing."""
        module = self.state.get("_model_module")
        return "disabled" in self.state or module not in OF_IPYWIDGETS

    def take(self, data: Any, buffers: Sequence[Any]) -> None:
        """A message that went over it, in either direction."""
        if self.state and isinstance(data, dict) and data.get("method") in UPDATES:
            self.state.update(wire.with_buffers(wire.plain(data), buffers))

    def update(self, state: dict[str, Any]) -> None:
        """Change the widget's state on the page, where no rank does."""
        data = {"method": "update", "state": state, "buffer_paths": []}
        self.take(data, ())
        self.send(data)

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        parent: Message | None = None,
        **keys: Any,
    ) -> None:
        self._kernel.session.send(
            self._kernel.iopub_socket,
            msg_type,
            {"data": data or {}, "comm_id": self.comm_id, **keys},
            metadata=metadata or {},
            parent=parent or self.parent,
            ident=self.topic,
            buffers=buffers,
        )

    # Around those of the base class IPython's pre_execute and post_execute are triggered, which
    # would show the half-made figures of a cell that runs.
    def handle_msg(self, msg: Message) -> None:
        self._hear(self, "comm_msg", msg)

    def handle_close(self, msg: Message) -> None:
        self._hear(self, "comm_close", msg)


UPDATES = ("update", "echo_update")


def raw(buffers: Iterable[Any]) -> list[bytes]:
    return [bytes(buffer) for buffer in buffers]
