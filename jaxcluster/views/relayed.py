"""One comm of a rank: its cell, what it has come to, and its twin with the page."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from comm.base_comm import BaseComm

from jaxcluster import wire
from jaxcluster.cluster.running import RunningCell
from jaxcluster.wire import CommState

Message = dict[str, Any]  # of Jupyter's, or its content
OF_IPYWIDGETS = ("@jupyter-widgets/base", "@jupyter-widgets/controls", "@jupyter-widgets/output")


@dataclass
class Home:
    """The cell in which comms were opened, and where their output is shown."""

    seq: int
    parent: Message
    number: int = 0
    source: str = ""
    ranks: Sequence[int] = ()
    told_dead: bool = False
    is_left: bool = False  # a page that is loaded again shows nothing more below that cell
    latest: Message | None = None  # what the page has said last


@dataclass
class Said:
    """What the page has said on a comm, on its way to the ranks."""

    kind: str
    data: Any
    metadata: Message
    buffers: list[bytes]
    target_name: str = ""
    heard: list[threading.Event] = field(default_factory=list)
    running: RunningCell | None = None

    def joins(self, later: Said) -> bool:
        """Whether one message can say both: two updates of a widget's state."""
        both = (self, later)
        return all(
            s.kind == "comm_msg"
            and isinstance(s.data, dict)
            and s.data.get("method") == "update"
            and not s.buffers
            for s in both
        )

    def join(self, later: Said) -> None:
        self.data = self.data | {"state": self.data["state"] | later.data["state"]}
        self.heard += later.heard

    def is_through(self) -> None:
        """The widget's own rank has done it, or never will."""
        for heard in self.heard:
            heard.set()


@dataclass(eq=False)
class Relayed:
    """One comm of a rank; ``dead`` is why its rank will say nothing more."""

    rank: int
    twin: str
    home: Home
    state: CommState
    world: Any
    comm: FrontendComm | None = None
    dead: str = ""
    is_under_way: bool = False
    waiting: deque[Said] = field(default_factory=deque)

    @property
    def is_two_way(self) -> bool:
        """Whether a user may have something to do to it: a bar or a text has nothing."""
        state = self.state.state
        module = state.get("_model_module")
        return not self.state.is_widget or "disabled" in state or module not in OF_IPYWIDGETS


class FrontendComm(BaseComm):
    """A comm with the page, whose messages stand under a cell of their own.

    Not ipykernel's: that gives the page's messages to the shell that sent last on the comm.
    """

    def __init__(self, kernel: Any, parent: Message, hear: Hear, **keys: Any) -> None:
        self._kernel = kernel
        self.parent = parent
        self._hear = hear
        super().__init__(**keys)

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        self._kernel.session.send(
            self._kernel.iopub_socket,
            msg_type,
            content,
            metadata=metadata or {},
            parent=self.parent,
            ident=self.topic,
            buffers=buffers,
        )

    # Around those of the base class IPython's pre_execute and post_execute are triggered, which
    # would show the half-made figures of a cell that runs.
    def handle_msg(self, msg: Message) -> None:
        self._hear("comm_msg", msg)

    def handle_close(self, msg: Message) -> None:
        self._hear("comm_close", msg)


Hear = Callable[[str, Message], None]


class Below:
    """What stands below the widgets of a cell: the output of their messages, and what is said.

    Args:
      kernel: of the notebook.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def show(self, home: Home, output: wire.RankOutput) -> None:
        content = dict(output.content)
        if output.kind == "stream":
            self.print(home, content["name"], content["text"])
        elif output.kind in ("display_data", "execute_result", "update_display_data"):
            kind = "display_data" if output.kind == "execute_result" else output.kind
            content.pop("array", None)
            self.send(home, kind, {"transient": {}, **content})

    def print(self, home: Home, name: str, text: str) -> None:
        self.send(home, "stream", {"name": name, "text": text})

    def send(self, home: Home, kind: str, content: Message) -> None:
        kernel = self._kernel
        # Else under what the page has said, as any kernel's callbacks do: Lab's log has it then.
        parent = home.latest if home.is_left and home.latest else home.parent
        kernel.session.send(kernel.iopub_socket, kind, content, parent=parent, ident=kind.encode())


def buffers_of(message: Message) -> list[bytes]:
    return raw(message.get("buffers") or ())


def raw(buffers: Iterable[Any]) -> list[bytes]:
    return [bytes(buffer) for buffer in buffers]
