"""The kernel's side of the Lab extension: what it shows, and what it asks for.

Two comms; ``labextension/src/protocol.ts`` describes the messages. Only the kernel speaks on
``jaxcluster.events``, whose comm is never opened: frontends without the extension hear nothing.
Only pages speak on ``jaxcluster.rpc``, which they open, if they can over a subshell: then they are
heard while a cell runs. ipykernel 7.4 would send a page's messages to whatever shell the kernel has
last answered from on the same comm, hence two.

One thread of the panel's own sends the state, on change only: an idle notebook must look idle to
whatever culls idle kernels. No failure here reaches a cell.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import comm

from jaxcluster.cluster import events
from jaxcluster.errors import JaxClusterError
from jaxcluster.host import kernel_private
from jaxcluster.model.rewrite import AutoMode
from jaxcluster.notebook.panel.model import Message, Model
from jaxcluster.notebook.panel.operations import Operations

if TYPE_CHECKING:
    from jaxcluster.notebook.panel.widget import SidebarWidget

EVENTS, EVENTS_ID, RPC = "jaxcluster.events", "jaxcluster-events", "jaxcluster.rpc"
TOGETHER_S = 0.02  # changes that come together are sent together
BETWEEN_S = 0.1  # two pushes
ALONE_S = 1.0  # the same while there is no page
BUSY_S = 0.5  # between two looks at the ranks while some run a cell
IDLE_S = 5.0  # other notebooks may run cells on the same cluster
LOOK_S = 1.0  # that a look waits for the ranks' answers
HELLO_S = 0.3  # ... while a page waits for its own
SHOWN_S = 2.0  # that a new widget waits for its first state

Reply = Callable[[Any], Any]


class Panel:
    """Keeps the pages that show this kernel's notebook up to date, and does what they ask.

    Args:
      shell: IPython's, of a notebook's kernel.
      auto: the switch of ``%jaxcluster auto``.
    """

    def __init__(self, shell: Any, auto: AutoMode) -> None:
        self._log = shell.kernel.log
        self._model = Model(auto)
        self._operations = Operations(auto, self._model)
        self._events = comm.create_comm(target_name=EVENTS, comm_id=EVENTS_ID, primary=False)
        self._pages: dict[str, str] = {}  # the client behind each rpc comm, once it has said hello
        self._hellos: deque[tuple[Reply, str]] = deque()
        self._widget: SidebarWidget | None = None
        self._sent: dict[str, Any] = {}
        self._wake = threading.Event()
        self._wake.set()
        self._urgent = threading.Event()  # somebody waits for a push
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="jaxcluster-panel", daemon=True)

    def install(self) -> None:
        manager = comm.get_comm_manager()
        manager.register_target(RPC, self._on_open)
        manager.register_comm(self._events)
        self._events.on_close(self._keep)
        for opened in [c for c in manager.comms.values() if c.target_name == RPC]:
            self._on_open(opened)  # by a page that has lived through %reload_ext
        events.watchers.append(self.tell)
        self._thread.start()

    def _keep(self, message: Any) -> None:
        """A page that closes the events must not take them from the others."""
        comm.get_comm_manager().register_comm(self._events)

    def uninstall(self) -> None:
        events.watchers.remove(self.tell)
        manager = comm.get_comm_manager()
        manager.unregister_target(RPC, self._on_open)
        manager.comms.pop(EVENTS_ID, None)
        self._closed = True
        self._hurry()
        self._thread.join(2)
        if self._widget is not None:
            self._widget.close()
        # Else its finalizer says so to frontends that don't know it.
        kernel_private.mark_closed(self._events)

    def tell(self, cell: Any = None) -> None:
        """Something has changed. In the way of every cell: microseconds, and no error."""
        if cell is not None:
            self._model.submitted.append(cell)
        self._wake.set()

    def widget(self) -> SidebarWidget:
        """The sidebar for a cell's output: one for the kernel, of which there may be many views.

        Raises:
          UsageError: it was not built.
        """
        if self._widget is None:
            from jaxcluster.notebook.panel.widget import (
                SidebarWidget,  # takes as long as all of ipywidgets
            )

            made = SidebarWidget(lambda request: self._begin(made.send, request))
            self._widget = made
            self._pages[f"widget {made.model_id}"] = ""
        self._hurry()
        # What runs the notebook without a page saves what there is at the cell's end.
        until = time.monotonic() + SHOWN_S
        while not self._widget.state and time.monotonic() < until:
            time.sleep(0.01)
        return self._widget

    # ------------------------------------------------------------------ what pages ask

    def _on_open(self, opened: Any, message: Any = None) -> None:
        def handle(message: Any) -> None:
            self._begin(self._events.send, message["content"]["data"], opened)

        # Not on_msg: around its callback IPython's pre_execute and post_execute are triggered,
        # which would flush the half-made figures of a cell that runs.
        opened.handle_msg = handle
        opened.on_close(lambda message: self._pages.pop(opened.comm_id, None))
        self._pages[opened.comm_id] = ""

    def _begin(self, reply: Reply, request: Any, opened: Any = None) -> None:
        """Whatever it is, this shell must be free for the next one. ``opened``: a page's comm."""
        asked = (reply, request, opened)
        threading.Thread(
            target=self._answer, args=asked, name="jaxcluster-request", daemon=True
        ).start()

    def _answer(self, reply: Reply, request: Any, opened: Any) -> None:
        id, op, args = str(request.get("id")), request.get("op"), request.get("args") or {}
        answer: Message = {"type": "answer", "id": id}
        try:
            if self._closed:
                raise JaxClusterError("jaxcluster is not loaded.", "%load_ext jaxcluster loads it.")
            if op == "hello":
                if opened is not None:
                    self._welcome(str(args["client"]), opened)
                self._hellos.append((reply, id))
                self._hurry()
                return
            reply({**answer, "result": self._operations(op, args)})
        except JaxClusterError as error:
            reply({**answer, "error": str(error)})
        except Exception as error:  # also what can't be sent
            self._log.exception("jaxcluster's panel: %s failed", op)
            told = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            reply({**answer, "error": told})
        if not self._closed:
            self.tell()

    def _welcome(self, client: str, opened: Any) -> None:
        """A page that was reloaded may not have closed the comm that it had before."""
        manager = comm.get_comm_manager()
        for comm_id in [id for id, other in list(self._pages.items()) if other == client]:
            if comm_id != opened.comm_id:
                del self._pages[comm_id]
                # On it the kernel sends not even its end.
                kernel_private.mark_closed(manager.comms.pop(comm_id))
        self._pages[opened.comm_id] = client

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        is_over, looked_at = False, 0.0
        while not is_over:
            look_at = looked_at + (BUSY_S if self._model.is_busy else IDLE_S)
            self._wake.wait(max(0.0, look_at - time.monotonic()) if self._pages else None)
            time.sleep(TOGETHER_S)
            self._wake.clear()
            is_over = self._closed  # what is told now is the last
            try:
                if self._hellos or (self._pages and not is_over and time.monotonic() >= look_at):
                    looked_at = time.monotonic()
                    self._model.look(HELLO_S if self._hellos else LOOK_S)
                self._turn()
            except Exception:
                self._log.exception("jaxcluster's panel")
            if not is_over:
                self._urgent.wait(BETWEEN_S if self._pages else ALONE_S)
                self._urgent.clear()

    def _hurry(self) -> None:
        self._wake.set()
        self._urgent.set()

    def _turn(self) -> None:
        """Bring the pages up to date."""
        state, changed = self._model.take_in()
        self._push("", state)
        if self._widget is not None:
            self._widget.follow(state)
        for cell in changed:
            self._push(cell["cell_id"], cell)
        while self._hellos:
            reply, id = self._hellos.popleft()
            of_widget = self._widget is not None and reply == self._widget.send  # it shows no cells
            greeting = {"state": state, "cells": [] if of_widget else self._model.cells()}
            reply({"type": "answer", "id": id, "result": greeting})

    def _push(self, key: str, message: Message) -> None:
        unchanging = {name: value for name, value in message.items() if name != "now"}
        if self._sent.get(key) != unchanging:
            self._sent[key] = unchanging
            self._events.send(message)
