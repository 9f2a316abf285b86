"""Comms that are opened on a rank: their messages go by the control channel, both ways.

A comm belongs to the cell in which it was opened. Those of ranks whose output is shown have one of
the same id with the notebook's frontend. Of the others it is kept what they have come to, until
somebody looks at that rank's output (``reveal``).

What a user does to a widget comes back as a cell (``CellRequest.message``), so it has its turn
among the cells, can be interrupted, and its launches are watched. It goes to all ranks that ran the
widget's cell: each does it to its own twin, the comm that it opened at the same place of the same
cell after the same others. So a widget has one value on all ranks, and what observes it runs in
lockstep. A rank without a twin does nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import comm
from ipykernel.comm.comm import BaseComm

from jaxcluster import wire
from jaxcluster.engine import usercode
from jaxcluster.engine.cells import CellRunner
from jaxcluster.engine.control import Request
from jaxcluster.engine.output_widgets import Captured
from jaxcluster.engine.running import Home
from jaxcluster.host import kernel_private
from jaxcluster.wire.ops.cells import Reveal

OUTPUT = "OutputModel"


@dataclass
class _Opened:
    """A comm that lives.

    Attributes:
      twin: what it and the same comm on the other ranks are called.
      state: what it has come to, where that has to be known: of one that is not shown, and of an
        ``ipywidgets.Output``.
      captured: what an ``Output`` shows.
    """

    home: Home
    twin: str
    shown: bool
    state: wire.CommState | None = None
    captured: Captured | None = None


class Comms:
    """Those of one rank.

    Args:
      is_client: whether a plain ipyparallel client's code runs now: its comms are not ours.
    """

    def __init__(self, runner: CellRunner, is_client: Callable[[], bool]) -> None:
        self._runner = runner
        self._is_client = is_client
        self._opened: dict[str, _Opened] = {}
        self._twins: dict[str, str] = {}
        self._chains: dict[int, str] = {}  # a cell's seq -> digest of what it has opened so far
        self._capturing: dict[int, list[Captured]] = {}  # by thread
        self._lock = threading.RLock()

    def attach(self) -> None:
        """Have every comm of this process ask here, whichever class its library makes it by."""
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
            if not self._publish(this, msg_type, data, metadata, buffers, keys):
                publish(this, msg_type, data, metadata, buffers, **keys)

        BaseComm.publish_msg = publish_msg  # type: ignore[method-assign,assignment]
        manager: Any = comm.get_comm_manager()
        register = manager.register_target

        def register_target(name: str, target: Any) -> None:
            register(name, target)
            home = self._runner.home()
            if home is not None and home.shown and not name.startswith(wire.WIDGET):
                self._push(home, "target", target_name=name)

        manager.register_target = register_target
        self._runner.diverts = lambda: bool(self._capturing and self._stack())
        self._runner.divert = self._divert
        self._runner.deliver = self._deliver
        get_parent = shell.get_parent
        # An Output asks whose messages it is to take. Here it takes the output of its thread, but
        # it must be told a name, or it takes nothing.
        name = {"header": {"msg_id": "jaxcluster"}}
        shell.get_parent = lambda: get_parent() if self._is_client() else name
        of_kernel = shell.kernel.get_parent  # which older ipywidgets ask
        shell.kernel.get_parent = lambda channel=None: of_kernel(channel) or name

    # ------------------------------------------------------------------ to the notebook

    def _publish(
        self, this: Any, kind: str, data: Any, metadata: Any, buffers: Any, keys: dict[str, Any]
    ) -> bool:
        """Whether a message was ours to send."""
        frames = [memoryview(b).tobytes() for b in buffers or ()]
        ours, ended = self._pass_on(this.comm_id, kind, data, metadata, frames, keys)
        for captured in ended:  # without the lock: it may call what observes the widget
            captured.end()
        return ours

    def _pass_on(
        self,
        id: str,
        kind: str,
        data: Any,
        metadata: Any,
        frames: Sequence[bytes],
        keys: dict[str, Any],
    ) -> tuple[bool, list[Captured]]:
        """Whether a message is ours, and what of an ``Output`` ends with it."""
        ended: list[Captured] = []
        with self._lock:
            opened = self._opened.get(id)
            if opened is None:
                home = None if kind != "comm_open" or self._is_client() else self._runner.home()
                if home is None:
                    return False, []
                opened = self._open(id, home, data, metadata, frames, keys)
            elif kind == "comm_close":
                ended = self._forget(id)
            elif opened.captured is not None and opened.captured.is_told:
                return True, []  # it has just been told: its echo
            elif kind == "comm_msg":
                if opened.captured is not None:
                    ended, is_heard = self._capture(opened.captured, data)
                    if not is_heard:
                        opened = None
                if opened is not None and opened.state is not None:
                    opened.state.take(wire.plain(data), metadata, frames)
            if opened is not None and opened.shown:
                self._push(
                    opened.home,
                    kind,
                    frames,
                    comm_id=id,
                    twin=opened.twin,
                    data=data or {},
                    metadata=metadata or {},
                    target_name=keys.get("target_name", ""),
                    target_module=keys.get("target_module"),
                )
        return True, ended

    def _open(
        self,
        id: str,
        home: Home,
        data: Any,
        metadata: Any,
        frames: Sequence[bytes],
        keys: dict[str, Any],
    ) -> _Opened:
        """Take in a new comm. With the lock held."""
        told = wire.plain({"data": data or {}, "metadata": metadata or {}, **keys})
        state = wire.CommState.opened(told, frames)
        model = state.state.get("_model_name")
        what = f"{state.target_name} {model} {self._runner.agreement.place()}"
        chain = f"{self._chains.get(home.seq, '')} {what}".encode()
        self._chains[home.seq] = digest = hashlib.blake2b(chain, digest_size=8).hexdigest()
        opened = self._opened[id] = _Opened(home, f"{home.seq}-{digest}", home.shown)
        self._twins[opened.twin] = id
        if model == OUTPUT:
            opened.captured = Captured(lambda outputs, is_last: self._show(id, outputs, is_last))
            opened.captured.outputs = list(state.state.get("outputs") or ())
        if not home.shown or opened.captured is not None:
            opened.state = state
        return opened

    def _forget(self, id: str) -> list[Captured]:
        """It is closed: what ends with it. With the lock held."""
        opened = self._opened.pop(id)
        self._twins.pop(opened.twin, None)
        if opened.captured is None:
            return []
        self._end_capture(opened.captured)
        return [opened.captured]

    def _push(self, home: Home, kind: str, frames: Sequence[bytes] = (), **said: Any) -> None:
        """Send it to the notebook of ``home``, under the cell that runs now."""
        running = self._runner.current
        is_cell = running is not None and running.cell.message is None
        under = running.cell.seq if running is not None and is_cell else home.seq
        message = wire.CommPush(self._runner.rank, home.seq, under, kind, **said)
        self._runner.control.post(home.ident, wire.encode("push", "", message), frames)

    def reveal(self, request: Request[Reveal]) -> list[str]:
        """``reveal``: open these comms with the notebook, and all that they name. Any thread.

        Returns:
          which of them are open now; the others were closed.
        """
        ids = request.body.ids
        with self._lock:
            known = {id: o.state for id, o in self._opened.items() if o.state is not None}
            for id in wire.opening_order(ids, known):
                opened = self._opened[id]
                if opened.shown or opened.state is None:
                    continue
                state, opened.shown = opened.state, True
                opened.home = Home(request.ident, opened.home.seq, opened.home.number, True)
                data, buffers = state.opening()
                self._push(
                    opened.home,
                    "comm_open",
                    _raw(buffers),
                    comm_id=id,
                    twin=opened.twin,
                    data=data,
                    metadata=state.metadata,
                    target_name=state.target_name,
                    target_module=state.target_module,
                )
                for data, metadata, later in state.later:
                    said = {"data": data, "metadata": metadata or {}}
                    self._push(opened.home, "comm_msg", _raw(later), comm_id=id, **said)
                if opened.captured is None:
                    opened.state = None
            return [id for id in ids if id in self._opened]

    # ------------------------------------------------------------------ from the notebook

    def _deliver(self, request: Request[wire.CellRequest], message: wire.CommMessage) -> None:
        """Do what a user did to a widget to this rank's own. On the main thread, in its turn."""
        manager: Any = comm.get_comm_manager()
        own = message.rank == self._runner.rank
        id = message.comm_id if own else self._twins.get(message.twin, "")
        content = {"comm_id": id, "data": message.data, "target_name": message.target_name}
        told = {
            "header": {"msg_id": ""},
            "parent_header": {},
            "metadata": message.metadata,
            "content": content,
            "buffers": list(request.buffers),
            "idents": [],
        }
        if message.kind == "comm_open":
            self._accept(manager, message, told)
            return
        known = manager.comms.get(id)
        with self._lock:
            opened = self._opened.get(id)
            if known is None or opened is None:
                return
            if opened.state is not None and message.kind == "comm_msg":
                self._take(opened, message.data, request.buffers)
        with self._runner.at_home(opened.home):
            if message.kind == "comm_close":
                manager.comms.pop(id, None)
                kernel_private.mark_closed(known)
                with self._lock:
                    self._forget(id)
                say(known.handle_close, told)
            else:
                say(known.handle_msg, told)

    @staticmethod
    def _take(opened: _Opened, data: Any, buffers: Sequence[Any]) -> None:
        assert opened.state is not None
        opened.state.take(wire.plain(data), {}, buffers)
        if opened.captured is not None and isinstance(data.get("state"), dict):
            opened.captured.outputs = list(opened.state.state.get("outputs") or ())

    def _accept(self, manager: Any, message: wire.CommMessage, told: dict[str, Any]) -> None:
        """The page opens a comm, for a target that the user's code has registered here."""
        target = manager.targets.get(message.target_name)
        if target is None:
            return
        told["content"]["comm_id"] = id = message.comm_id
        home = self._runner.home()
        assert home is not None
        made = comm.create_comm(comm_id=id, primary=False, target_name=message.target_name)
        manager.register_comm(made)
        with self._lock:
            shown = message.rank == self._runner.rank
            twin = f"opened-{id}"
            self._twins[twin] = id
            self._opened[id] = _Opened(Home(home.ident, home.seq, home.number, shown), twin, shown)
            if not shown:
                self._opened[id].state = wire.CommState(message.target_name, None, {}, {})
        say(target, made, told)

    # ------------------------------------------------------------------ ipywidgets' Output

    def _capture(self, captured: Captured, data: Any) -> tuple[list[Captured], bool]:
        """What an ``Output`` says of itself. With the lock held.

        Returns:
          what ends with it, and whether there is anything left for the page to hear.
        """
        state = data.get("state") if isinstance(data, dict) else None
        if not isinstance(state, dict):
            return [], True
        if "outputs" in state:
            captured.outputs = list(wire.plain(state["outputs"]) or ())
        if "msg_id" not in state:
            return [], True
        is_heard = len(state) > 1 or data.get("method") != "update"
        if state.pop("msg_id"):
            self._capturing.setdefault(threading.get_ident(), []).append(captured)
            return [], is_heard
        self._end_capture(captured)
        return [captured], is_heard

    def _end_capture(self, captured: Captured) -> None:
        for thread, stack in list(self._capturing.items()):
            if captured in stack:
                stack.remove(captured)
            if not stack:
                self._capturing.pop(thread, None)

    def _divert(self, kind: str, content: dict[str, Any]) -> bool:
        """Whether an ``Output`` takes the output of this thread."""
        if not self._capturing:
            return False
        with self._lock:
            if not (stack := self._stack()):
                return False
            stack[-1].add(kind, content)
            return True

    def _stack(self) -> list[Captured]:
        """The innermost one is the last. A thread without any has the main thread's."""
        main = self._runner.main_thread_id
        return self._capturing.get(threading.get_ident()) or self._capturing.get(main) or []

    def _show(self, id: str, outputs: list[dict[str, Any]], is_last: bool) -> None:
        """An ``Output`` has these now: tell the page, and at the end the widget itself."""
        data = {"method": "update", "state": {"outputs": outputs}, "buffer_paths": []}
        with self._lock:
            opened = self._opened.get(id)
            if opened is None or opened.captured is None or opened.state is None:
                return
            before = opened.state.state.get("outputs")
            opened.state.take(wire.plain(data), {}, ())
            if opened.shown and before != opened.state.state["outputs"]:
                self._push(opened.home, "comm_msg", comm_id=id, data=data)
            known = comm.get_comm_manager().comms.get(id)
            callback = getattr(known, "_msg_callback", None)
            if callback is None or not is_last:
                return
            opened.captured.is_told = True
        try:
            content = {"comm_id": id, "data": data}
            callback({"content": content, "metadata": {}, "buffers": []})
        finally:
            opened.captured.is_told = False


def say(handle: Callable[..., None], *told: Any) -> None:
    """Into the user's code, which may be interrupted from here on."""
    handle(*told)


usercode.RUNS.add(say.__code__)
usercode.WHOLE.update({Comms._pass_on.__code__, Comms._divert.__code__})


def _raw(buffers: Sequence[Any]) -> list[bytes]:
    return [bytes(buffer) for buffer in buffers]
