"""The notebook's side of comms that ranks open (see ``jaxcluster.engine.comms``).

Each has one of the same id with the page. The notebook knows the state of each widget, so it can
answer a page that is loaded again. What a user does to a widget is a cell on the ranks that ran the
widget's cell. Its output is shown below the widget.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import comm
from comm.base_comm import BaseComm

from jaxcluster import wire
from jaxcluster.cluster import Cluster
from jaxcluster.errors import CellFailed, CellInterrupted, JaxClusterError
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import name_ranks
from jaxcluster.wire.link import Event

HEARD_S = 2.0  # that a page which was loaded again hears what its message puts out
CONTROL = "jupyter.widget.control"
WIDGET = "jupyter.widget"  # ipywidgets' target
VIEW_MIME = "application/vnd.jupyter.widget-view+json"
UPDATES = ("update", "echo_update")

Message = dict[str, Any]  # of Jupyter's, or its content
Hear = Callable[["Relayed", str, Message], None]


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
    """

    def __init__(
        self, kernel: Any, hear: Hear, home: Home, world: Any, push: wire.CommPush, buffers: Any
    ) -> None:
        self._kernel, self._hear = kernel, hear
        self.home, self.parent, self.world = home, home.parent, world
        self.rank, self.twin = push.rank, push.twin
        is_widget = push.target_name == WIDGET
        self.state = with_buffers(wire.plain(push.data), buffers) if is_widget else {}
        super().__init__(
            push.target_name or "comm",
            push.data,
            push.metadata,
            buffers,
            push.comm_id,
            target_module=push.target_module,
        )

    def take(self, data: Any, buffers: Sequence[Any]) -> None:
        """A message that went over it, in either direction."""
        if self.state and isinstance(data, dict) and data.get("method") in UPDATES:
            self.state.update(with_buffers(wire.plain(data), buffers))

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


def raw(buffers: Iterable[Any]) -> list[bytes]:
    return [bytes(buffer) for buffer in buffers]


class CommRelay:
    """Gives each comm of a cluster's ranks one of the same id with the page.

    Args:
      shell: IPython's, of a notebook's kernel.
    """

    def __init__(self, cluster: Cluster, shell: Any) -> None:
        self.cluster = cluster
        self._kernel = shell.kernel
        self._comms: dict[str, Relayed] = {}
        self._homes: dict[int, Home] = {}
        self._homes_of: Any = None  # the world whose cells these are
        self._parent: Message = {}
        self._lock = threading.RLock()
        cluster.on_push = self.handle

    # ------------------------------------------------------------------ from the ranks

    def expect(self) -> None:
        """The cell that runs in the notebook now is going to send a cell."""
        self._parent = self._kernel.get_parent("shell")

    def begin(self, record: CellRecord) -> None:
        """It was sent: what it opens stands under the notebook's cell."""
        with self._lock:
            home = self._home(record.seq)
            home.number, home.source = record.execution_count, record.source
            home.ranks = list(record.ranks)

    def _home(self, seq: int) -> Home:
        with self._lock:
            if self._homes_of is not self.cluster.world:  # its cells are counted from one again
                self._homes_of = self.cluster.world
                self._homes.clear()
            if seq not in self._homes:
                self._homes[seq] = Home(self._parent)
            return self._homes[seq]

    def handle(self, event: Event[wire.CommPush]) -> None:
        """Pass on what a rank sends. On the link's thread."""
        push, buffers = event.body, raw(event.buffers)
        if push.kind == "comm_open":
            if not self._comms:
                self._take_control()
            self._comms[push.comm_id] = Relayed(
                self._kernel, self._hear, self._home(push.seq), self.cluster.world, push, buffers
            )
        elif (relayed := self._comms.get(push.comm_id)) is not None:
            relayed.parent = self._home(push.under).parent
            if push.kind == "comm_close":
                del self._comms[push.comm_id]
                relayed.close(push.data, push.metadata, buffers)
            else:
                relayed.take(push.data, buffers)
                relayed.send(push.data, push.metadata, buffers)

    def _take_control(self) -> None:
        """Have a page that is loaded again ask each model for its state.

        It first asks ipywidgets for all of them, which knows nothing of the ranks'.
        """
        import ipywidgets  # noqa: F401 (it registers the target that is taken over here)

        _relays.add(self)
        comm.get_comm_manager().register_target(CONTROL, _refuse)

    # ------------------------------------------------------------------ ranks that were not shown

    def as_shown(self, output: wire.RankOutput) -> Message:
        """An output's content; without the widget in it, if its rank was not shown in the cell."""
        content, id = output.content, model_of(output.content)
        if id is None or id in self._comms:
            return content
        data = {mime: value for mime, value in content["data"].items() if mime != VIEW_MIME}
        return {**content, "data": data}

    # ------------------------------------------------------------------ from the page

    def _hear(self, relayed: Relayed, kind: str, message: Message) -> None:
        """What the page says on a comm. On the main thread, or on a subshell's."""
        relayed.home.latest = message
        data = message["content"].get("data") or {}
        buffers = raw(message.get("buffers") or ())
        if relayed.state and data.get("method") == "request_state":
            state, paths, frames = without_buffers(relayed.state)
            told = {"method": "update", "state": state, "buffer_paths": paths}
            relayed.publish_msg("comm_msg", told, buffers=frames, parent=message)
        elif kind != "comm_close" and (why := self._why_dead(relayed)):
            cell = f"cell [{relayed.home.number}]" if relayed.home.number else "the cell"
            end = f"The widgets of {cell} are no longer live: {why}. Run the cell again.\n"
            self._print(relayed.home, "stdout", end)
        else:
            if kind == "comm_close":
                self._comms.pop(relayed.comm_id, None)
            relayed.take(data, buffers)
            if not self._why_dead(relayed):
                self._say(Said(relayed, kind, data, message.get("metadata") or {}, buffers))

    def _say(self, said: Said) -> None:
        """Pass it on after what waits already."""
        home = said.relayed.home
        with self._lock:
            home.waiting.append(said)
            is_first, home.is_under_way = not home.is_under_way, True
        if is_first:
            threading.Thread(
                target=self._carry_all, args=(home,), name="jaxcluster-widgets", daemon=True
            ).start()
        if home.is_left:  # Lab's log takes in what comes while the kernel answers the message
            said.is_done.wait(HEARD_S)

    def _carry_all(self, home: Home) -> None:
        """What the page says to a cell's widgets, in order; updates that wait become one.

        On a thread of its own.
        """
        while True:
            with self._lock:
                if not home.waiting:
                    home.is_under_way = False
                    return
                said = home.waiting.popleft()
                while home.waiting and said.joins(home.waiting[0]):
                    said.join(home.waiting.popleft())
            try:
                self._carry(home, said)
            except CellFailed as error:
                self._print(home, "stderr", "\n".join([*error._render_traceback_(), ""]))
            except (JaxClusterError, CellInterrupted) as error:
                self._print(home, "stderr", f"{error}\n")
            except Exception:
                self._kernel.log.exception("jaxcluster: a message of a widget")
            finally:
                said.is_done.set()

    def _carry(self, home: Home, said: Said) -> None:
        """One message to the ranks, to the end of what it does there."""
        relayed, ranks = said.relayed, list(home.ranks) or [said.relayed.rank]
        is_headed = relayed.rank == ranks[0]  # or it is said whose output that is

        def listen(record: CellRecord, what: wire.RankOutput | wire.CellReply) -> None:
            nonlocal is_headed
            if what.rank == relayed.rank and isinstance(what, wire.RankOutput):
                if not is_headed:
                    is_headed = True
                    self._print(home, "stdout", f"── {name_ranks([relayed.rank])} ──\n")
                self._show(home, what)

        self.cluster.submit(
            home.source,
            message=wire.CommMessage(
                said.kind, relayed.rank, relayed.comm_id, relayed.twin, said.data, said.metadata
            ),
            buffers=said.buffers,
            execution_count=home.number,
            ranks=ranks,
            shown_ranks=[relayed.rank],
            on_output=listen,
            on_notice=lambda text: self._print(home, "stderr", text),
        ).wait()

    def _show(self, home: Home, output: wire.RankOutput) -> None:
        """What a message puts out, below the widgets of its cell."""
        content = dict(output.content)
        if output.kind == "stream":
            self._print(home, content["name"], content["text"])
        elif output.kind in ("display_data", "execute_result", "update_display_data"):
            kind = "display_data" if output.kind == "execute_result" else output.kind
            content.pop("array", None)
            self._send(home, kind, {"transient": {}, **content})

    def _print(self, home: Home, name: str, text: str) -> None:
        self._send(home, "stream", {"name": name, "text": text})

    def _send(self, home: Home, kind: str, content: Message) -> None:
        # Else under what the page has said, as any kernel's callbacks do: Lab's log has it then.
        parent = home.latest if home.is_left and home.latest else home.parent
        kernel = self._kernel
        kernel.session.send(kernel.iopub_socket, kind, content, parent=parent, ident=kind.encode())

    # ------------------------------------------------------------------ their end

    def _why_dead(self, relayed: Relayed) -> str:
        cluster = self.cluster
        if cluster.world is not relayed.world or cluster.is_restarting:
            return "the ranks have new processes"
        if relayed.rank in cluster.dead:
            return f"{name_ranks([relayed.rank])} has died"
        return f"cluster {cluster.name!r} was stopped" if cluster.closed else ""


_relays: weakref.WeakSet[CommRelay] = weakref.WeakSet()


def _refuse(opened: Any, message: Message) -> None:
    """A page that is loaded again asks for all models: it is to ask each."""
    for relay in list(_relays):
        for relayed in list(relay._comms.values()):
            relayed.home.is_left = True
    opened.close()


def model_of(content: Message) -> str | None:
    """The id of the model that an output shows; None where it is no widget's view."""
    view = (content.get("data") or {}).get(VIEW_MIME)
    return str(view["model_id"]) if isinstance(view, dict) and "model_id" in view else None


def relay_of(cluster: Cluster, shell: Any = None) -> CommRelay | None:
    """The relay of a cluster's comms; with a notebook's ``shell`` it is made if there is none."""
    found = getattr(cluster.on_push, "__self__", None)
    if not isinstance(found, CommRelay):
        found = CommRelay(cluster, shell) if hasattr(shell, "kernel") else None
    return found


def shown_by(cluster: Cluster, outputs: Iterable[wire.RankOutput]) -> list[wire.RankOutput]:
    """Outputs of ranks as a page can show them: their widgets are open with it."""
    relay = relay_of(cluster)
    if relay is None:
        return list(outputs)
    return [dataclasses.replace(output, content=relay.as_shown(output)) for output in outputs]


# --------------------------------------------------------------------------- a widget's state
#
# ipywidgets sends the whole state in the message that opens a comm, and parts of it in every
# update. Binary values are buffers beside the JSON.


def with_buffers(data: dict[str, Any], buffers: Sequence[Any]) -> dict[str, Any]:
    """The state of a message, with its buffers in their places. The message's state is changed."""
    state = data.get("state")
    if not isinstance(state, dict):
        return {}
    for path, buffer in zip(data.get("buffer_paths") or (), buffers, strict=False):
        at: Any = state
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = bytes(buffer)
    return state


def without_buffers(state: Any) -> tuple[Any, list[list[str | int]], list[bytes]]:
    """A copy of a state, the places of its buffers (None there), and the buffers."""
    paths: list[list[str | int]] = []
    buffers: list[bytes] = []

    def copy(value: Any, path: list[str | int]) -> Any:
        if isinstance(value, dict):
            return {key: copy(item, [*path, key]) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [copy(item, [*path, at]) for at, item in enumerate(value)]
        if isinstance(value, bytes | bytearray | memoryview):
            paths.append(path)
            buffers.append(bytes(value))
            return None
        return value

    return copy(state, []), paths, buffers
