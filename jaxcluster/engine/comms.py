"""Comms that a rank opens: their messages go by the control channel, both ways.

A comm belongs to the cell that opened it. The notebook opens a comm of the same id with its page
for each rank whose output is shown.

What a user does to a widget comes back as a cell (``CellRequest.message``). So it has its turn
among the cells, can be interrupted, and its launches are agreed on. It goes to all ranks that ran
the widget's cell. Each does it to its own twin: the comm that it opened at the same place of the
same cell after the same others. So a widget has one value on all ranks. A rank without a twin does
nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import comm
from ipykernel.comm.comm import BaseComm

from jaxcluster import wire
from jaxcluster.engine import interrupts
from jaxcluster.engine.control import Request
from jaxcluster.host import kernel_private

if TYPE_CHECKING:
    from jaxcluster.engine.cells import CellRunner

OUTPUT = "OutputModel"
CLOSED = {"state": {"msg_id": ""}}
LATEST_S = 0.1  # that an Output's output waits to be shown, while more comes
KEPT_CHARS = 1_000_000  # of printed text: all of it is sent each time

Said = tuple[str, dict[str, Any]]  # an output as ``RankOutput`` has it, or an ``error``


def widget_of(comm: Any) -> Any:
    """The widget that hears what the page says on a comm; None if there is none."""
    return getattr(getattr(comm, "_msg_callback", None), "__self__", None)


class Captured:
    """Gathers what an ``ipywidgets.Output`` shows: the output of code inside of ``with output:``.

    In a plain notebook the page fills an ``Output`` with what the kernel sends meanwhile. A rank's
    output comes to the page under another cell's name, or not at all. So the rank gathers it, and
    sets the widget's ``outputs``, on every rank, in a cell, a callback and a thread alike.

    Args:
      comm: the widget's.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._new: list[Said] = []
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._showing = threading.RLock()  # held while the user's code may run

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """There is more output: it is shown in a moment."""
        with self._lock:
            self._new.append((kind, content))
            if self._timer is None:
                self._timer = threading.Timer(LATEST_S, self.show)
                self._timer.name, self._timer.daemon = "jaxcluster-output", True
                self._timer.start()

    def show(self) -> None:
        """Show what there is: at the end, or on a thread of its own while more may come."""
        with self._showing:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                new, self._new = self._new, []
                if new and new[-1] == ("clear_output", {"wait": True}):
                    self._new.append(new.pop())  # it waits for the next output
            if new and (widget := widget_of(self._comm)) is not None:
                widget.outputs = tuple(merge(widget.outputs, new))


def merge(outputs: Sequence[dict[str, Any]], new: Sequence[Said]) -> list[dict[str, Any]]:
    """Outputs in nbformat's form, and what was put out after them."""
    made = list(outputs)
    for kind, content in new:
        shown = {"data": content.get("data"), "metadata": content.get("metadata") or {}}
        id = (content.get("transient") or {}).get("display_id")
        named = {} if id is None else {"transient": {"display_id": id}}
        if kind == "clear_output":
            made = []
        elif kind == "update_display_data":
            made = [one | shown if id and named.items() <= one.items() else one for one in made]
        elif kind == "error":
            made.append({"output_type": "error", **content})
        elif kind != "stream":  # a widget's view has no Out[n]
            made.append({"output_type": "display_data", **shown, **named})
        elif made and made[-1].get("name") == content["name"]:
            made[-1] = made[-1] | {"text": _kept(made[-1]["text"] + content["text"])}
        else:
            made.append({"output_type": "stream", **content, "text": _kept(content["text"])})
    return made


def _kept(text: str) -> str:
    if "\r" in text:
        text = overwritten(text)
    if len(text) > KEPT_CHARS:
        text = f"[... earlier text is not kept ...]\n{text[-KEPT_CHARS:]}"
    return text


def overwritten(text: str) -> str:
    """Text without what carriage returns have overwritten, as a terminal shows it."""
    lines = []
    for line in text.split("\n"):
        body = line.removesuffix("\r")
        lines.append(body.rpartition("\r")[2] + line[len(body) :])
    return "\n".join(lines)


@dataclass(frozen=True)
class Home:
    """A cell to which comms belong: its notebook, its seq, and whether it is shown."""

    ident: bytes
    seq: int
    shown: bool


@dataclass
class _Opened:
    """A comm that lives.

    Attributes:
      comm: this rank's end of it.
      twin: what it and the same comm on the other ranks are called.
      captured: what an ``ipywidgets.Output`` takes in.
    """

    comm: Any
    home: Home
    twin: str
    captured: Captured | None = None


class Comms:
    """Those of one rank."""

    def __init__(self, runner: CellRunner) -> None:
        self._runner = runner
        self._is_client: Callable[[], bool] = lambda: False
        self._opened: dict[str, _Opened] = {}
        self._twins: dict[str, str] = {}
        self._chains: dict[int, str] = {}  # a cell's seq -> digest of what it has opened so far
        self._capturing: list[tuple[int, Captured]] = []  # by thread; innermost last
        self._lock = threading.RLock()

    def attach(self, is_client: Callable[[], bool]) -> None:
        """Have every comm of this process ask here, whichever class its library makes it by.

        Args:
          is_client: whether a plain ipyparallel client's code runs now: its comms are not ours.
        """
        self._is_client = is_client
        publish: Any = BaseComm.publish_msg
        shell = self._runner.shell
        kernel = shell.kernel

        def publish_msg(
            this: Any,
            msg_type: str,
            data: Any = None,
            metadata: Any = None,
            buffers: Any = None,
            **keys: Any,
        ) -> None:
            if getattr(this, "kernel", kernel) is None:  # as ipykernel's does; ipywidgets looks
                this.kernel = kernel
            frames = [memoryview(b).tobytes() for b in buffers or ()]
            opened = self._pass_on(
                this, msg_type, data, {"metadata": metadata or {}, **keys}, frames
            )
            if opened is None:
                publish(this, msg_type, data, metadata, buffers, **keys)
            elif opened.captured is not None and msg_type != "comm_open":
                self._capture(opened.captured, data if msg_type == "comm_msg" else CLOSED)

        BaseComm.publish_msg = publish_msg  # type: ignore[method-assign,assignment]
        get_parent = shell.get_parent
        # An Output asks whose messages it is to take. Here it takes the output of its thread. But
        # it needs a name, or it takes nothing.
        name = {"header": {"msg_id": "jaxcluster"}}
        shell.get_parent = lambda: get_parent() if self._is_client() else name
        of_kernel = shell.kernel.get_parent  # which older ipywidgets ask
        shell.kernel.get_parent = lambda channel=None: of_kernel(channel) or name

    # ------------------------------------------------------------------ to the notebook

    def _pass_on(
        self, this: Any, kind: str, data: Any, keys: dict[str, Any], frames: Sequence[bytes]
    ) -> _Opened | None:
        """Send a message, if it is ours and its comm is shown. None: it is not ours."""
        with self._lock:
            opened = self._opened.get(this.comm_id)
            if opened is None:
                home = None if kind != "comm_open" or self._is_client() else self._runner.home
                if home is None:
                    return None
                opened = self._open(this, home, data, keys)
            elif kind == "comm_close":
                self._forget(this.comm_id)
            if opened.home.shown and not _is_for_output(data, opened):
                self._push(opened, kind, data, keys, frames)
            return opened

    def _open(self, this: Any, home: Home, data: Any, keys: dict[str, Any]) -> _Opened:
        """Take in a new comm. With the lock held."""
        state = data.get("state") if isinstance(data, dict) else None
        model = state.get("_model_name") if isinstance(state, dict) else None
        what = f"{keys.get('target_name')} {model} {self._runner.agreement.place()}"
        chain = f"{self._chains.get(home.seq, '')} {what}".encode()
        self._chains[home.seq] = digest = hashlib.blake2b(chain, digest_size=8).hexdigest()
        made = _Opened(this, home, f"{home.seq}-{digest}")
        if model == OUTPUT:
            made.captured = Captured(this)
        self._opened[this.comm_id] = made
        self._twins[made.twin] = this.comm_id
        return made

    def _forget(self, id: str) -> None:
        self._twins.pop(self._opened.pop(id).twin, None)

    def _push(
        self, opened: _Opened, kind: str, data: Any, keys: dict[str, Any], frames: Sequence[bytes]
    ) -> None:
        """Send it to the notebook of its cell, under the cell that runs now."""
        running, seq = self._runner.current, opened.home.seq
        under = running.cell.seq if running and running.cell.message is None else seq
        id, twin = opened.comm.comm_id, opened.twin
        push = wire.CommPush(self._runner.rank, seq, under, kind, id, twin, data or {}, **keys)
        self._runner.control.post(opened.home.ident, wire.encode("push", "", push), frames)

    # ------------------------------------------------------------------ from the notebook

    def deliver(self, request: Request[wire.CellRequest], message: wire.CommMessage) -> None:
        """Do what a user did to a widget to this rank's own. On the main thread, in its turn."""
        is_own = message.rank == self._runner.rank
        id = message.comm_id if is_own else self._twins.get(message.twin, "")
        opened = self._opened.get(id)
        if opened is None:
            return
        told = {
            "header": {"msg_id": ""},
            "parent_header": {},
            "metadata": message.metadata,
            "content": {"comm_id": id, "data": message.data},
            "buffers": list(request.buffers),
            "idents": [],
        }
        self._runner.home = opened.home
        if message.kind == "comm_close":
            comm.get_comm_manager().comms.pop(id, None)
            kernel_private.mark_closed(opened.comm)
            self._forget(id)
            say(opened.comm.handle_close, told)
        else:
            say(opened.comm.handle_msg, told)

    # ------------------------------------------------------------------ ipywidgets' Output

    def _capture(self, captured: Captured, data: Any) -> None:
        """An ``Output`` begins to take output, or ends it."""
        state = data.get("state") if isinstance(data, dict) else None
        if not isinstance(state, dict) or "msg_id" not in state:
            return
        if state["msg_id"]:
            self._capturing.append((threading.get_ident(), captured))
        else:
            self._capturing = [one for one in self._capturing if one[1] is not captured]
            captured.show()

    def divert(self, kind: str, content: dict[str, Any]) -> bool:
        """Whether an ``Output`` takes the output of this thread."""
        if (taker := self.taker()) is not None:
            taker.add(kind, content)
        return taker is not None

    def taker(self) -> Captured | None:
        """This thread's innermost one; a thread without any has the main thread's."""
        if self._capturing:
            for thread in (threading.get_ident(), self._runner.main_thread_id):
                for at, captured in reversed(self._capturing):
                    if at == thread:
                        return captured
        return None


def _is_for_output(data: Any, opened: _Opened) -> bool:
    """Whether it says only that an ``Output`` takes messages, which is not for the page."""
    return opened.captured is not None and set((data or {}).get("state") or ()) == {"msg_id"}


def say(handle: Callable[..., None], *told: Any) -> None:
    """Into the user's code, which may be interrupted from here on."""
    handle(*told)


interrupts.RUNS.add(say.__code__)
interrupts.WHOLE.update({Comms._pass_on.__code__, Comms.divert.__code__})
