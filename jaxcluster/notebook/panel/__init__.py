"""The kernel's side of the Lab extension: what it shows, and what it asks for.

``views/messages`` has the two comms' messages. Pages open ``jaxcluster.rpc``, over a subshell if
they can: then they are heard while a cell runs. With one comm, ipykernel 7.4 would send a page's
messages to the shell that has last answered on it.

One thread of the panel sends the state, on change only. So an idle notebook looks idle to services
that cull idle kernels. No failure there reaches a cell.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import comm
from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from jaxcluster.cluster import events
from jaxcluster.errors import JaxClusterError
from jaxcluster.host import kernel_private
from jaxcluster.model.rewrite import AutoMode
from jaxcluster.notebook.panel.model import Model
from jaxcluster.notebook.panel.operations import Operations
from jaxcluster.views.messages import EVENTS, EVENTS_ID, RPC, Answer, Cell, Hello, Request, State

if TYPE_CHECKING:
    from jaxcluster.notebook.panel.widget import SidebarWidget

TOGETHER_S = 0.02  # changes that come together are sent together
BETWEEN_S = 0.1  # two pushes
ALONE_S = 1.0  # the same while there is no page
BUSY_S = 0.5  # between two looks at the ranks while some run a cell
IDLE_S = 5.0  # other notebooks may run cells on the same cluster


class Panel:
    """Keeps the pages that show this kernel's notebook up to date, and does what they ask.

    Args:
      shell: IPython's, of a notebook's kernel.
      auto: the switch of ``%jaxcluster auto``.
    """

    def __init__(self, shell: Any, auto: AutoMode) -> None:
        self._log = shell.kernel.log
        self._model = Model(auto)
        self._operations = Operations(self._model, self._greet)
        self._events = comm.create_comm(target_name=EVENTS, comm_id=EVENTS_ID, primary=False)
        self._pages = set[str]()  # their rpc comms; who closes a browser closes none
        self._widget: SidebarWidget | None = None
        self._sent: dict[str, Struct] = {}
        self._wake = threading.Event()
        self._wake.set()
        self._closed = threading.Event()
        self._one_turn = threading.RLock()
        self._looked_at = 0.0
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
        self._closed.set()
        self._wake.set()
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
            self._pages.add(made.model_id)
        # A program that runs the notebook without a page saves the outputs at the cell's end.
        self._widget.state = to_builtins(self._turn(looks=True))
        return self._widget

    # ------------------------------------------------------------------ what pages ask

    def _on_open(self, opened: Any, message: Any = None) -> None:
        def handle(message: Any) -> None:
            self._begin(self._events.send, convert(message["content"]["data"], Request))

        # Not on_msg: it triggers IPython's pre_execute and post_execute around its callback. They
        # would flush the half-made figures of a cell that runs.
        opened.handle_msg = handle
        opened.on_close(lambda message: self._pages.discard(opened.comm_id))
        self._pages.add(opened.comm_id)

    def _begin(self, reply: Callable[[Any], None], request: Request) -> None:
        """This shell must be free for the next request."""
        threading.Thread(
            target=self._answer, args=(reply, request), name="jaxcluster-request", daemon=True
        ).start()

    def _answer(self, reply: Callable[[Any], None], request: Request) -> None:
        try:
            if self._closed.is_set():
                raise JaxClusterError("jaxcluster is not loaded.", "%load_ext jaxcluster loads it.")
            result = self._operations(request.op, request.args)
            reply(to_builtins(Answer(request.id, result)))
        except JaxClusterError as error:
            reply(to_builtins(Answer(request.id, error=str(error))))
        except Exception as error:  # also what can't be sent
            self._log.exception("jaxcluster's panel: %s failed", request.op)
            told = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            reply(to_builtins(Answer(request.id, error=told)))
        self.tell()

    def _greet(self) -> Hello:
        with self._one_turn:
            return Hello(self._turn(looks=True), self._model.cells())

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        is_over = False
        while not is_over:
            look_at = self._looked_at + (BUSY_S if self._model.is_busy else IDLE_S)
            self._wake.wait(max(0.0, look_at - time.monotonic()) if self._pages else None)
            time.sleep(TOGETHER_S)
            self._wake.clear()
            is_over = self._closed.is_set()  # then this message is the last
            is_time = not is_over and bool(self._pages) and time.monotonic() >= look_at
            try:
                self._turn(looks=is_time)
            except Exception:
                self._log.exception("jaxcluster's panel")
            self._closed.wait(BETWEEN_S if self._pages else ALONE_S)

    def _turn(self, looks: bool) -> State:
        """The state, which the pages have now, too. Any thread.

        Args:
          looks: ask the ranks first.
        """
        with self._one_turn:
            if looks:
                self._looked_at = time.monotonic()
                self._model.look()
            state, changed = self._model.take_in()
            for message in (state, *changed):
                key = message.cell_id if isinstance(message, Cell) else ""
                unchanging = replace(message, now=0)
                if self._sent.get(key) != unchanging:
                    self._sent[key] = unchanging
                    self._events.send(to_builtins(message))
                    if message is state and self._widget is not None:
                        self._widget.state = to_builtins(state)
            return state
