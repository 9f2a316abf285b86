"""A notebook's debugger in this rank: what it asks for, and what it is told.

The notebook (``cluster.rank_debuggers``) sends DAP requests, as JupyterLab makes them, and hears of
events as long as its ``debug_start`` is not answered. What depends on this process is done here:

- Which files a cell is: ``digests`` stand for it, since a cell gets its file when it runs.
- What only the main thread's cell may do: it is told to stop or to go on in a cell alone.
- That the stop button frees a rank that is stopped, and that a notebook that has gone holds none.
"""

from __future__ import annotations

import contextlib
import queue
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxcluster import wire
from jaxcluster.engine import dap
from jaxcluster.engine.cells import CellRunner
from jaxcluster.engine.control import DEFERRED, ControlChannel, Request
from jaxcluster.engine.dap import Message
from jaxcluster.errors import UsageError
from jaxcluster.wire.ops.debug import Debug, DebugEnded, DebugEvent, DebugStart, DebugStop

LEASE_S = 60.0  # without a word from the notebook, after which it has gone
_DIGEST = re.compile(r"-([0-9a-f]+)\.py$")
_STEPS = ("next", "stepIn", "stepOut")


class RankDebugger:
    """Nothing but a few names until a notebook switches its debugger on.

    Args:
      runner: the rank's.
      control: its control channel.
    """

    def __init__(self, runner: CellRunner, control: ControlChannel) -> None:
        self.runner = runner
        self._session: dap.Session | None = None
        self._listener: Request[DebugStart] | None = None
        self._heard_at = 0.0
        self._stopped: dict[int, int] = {}  # threads, and the hold on the rank for each
        self._main = 0  # the main thread, as DAP numbers it
        self._breakpoints: dict[str, list[Message]] = {}  # of cells, by digest
        self._lock = threading.Lock()
        control.handle(DebugStart, "side", self.on_start)
        control.handle(Debug, "now", self.on_request)
        control.handle(DebugStop, "side", self.on_stop)
        runner.debugger = self

    # ------------------------------------------------------------------ on and off

    def on_start(self, request: Request[DebugStart]) -> Any:
        """``debug_start``: trace from now on. It is answered when that has ended."""
        with self._lock:
            if self._session is not None:
                if self._listener is not None and self._listener.ident != request.ident:
                    raise UsageError("Another notebook is debugging this rank.")
                self._end("it was switched on again")
            self._session = dap.Session(self._on_event, self.runner.cell_numbers)
            self._listener = request
            self._heard_at = time.monotonic()
            threads = self._session.ask("threads").get("threads", [])
            self._main = next((t["id"] for t in threads if t["name"] == "MainThread"), 1)
        request.send("debug", DebugEvent(None))
        watch = threading.Thread(
            target=self._watch_lease, args=(self._session,), name="jaxcluster-debug-lease"
        )
        watch.daemon = True
        dap.spare_thread(watch)
        watch.start()
        return DEFERRED

    def on_stop(self, request: Request[DebugStop]) -> None:
        """``debug_stop``: all threads go on, and nothing is traced."""
        with self._lock:
            if self._listener is not None and self._listener.ident == request.ident:
                self._end("it was switched off")

    def _end(self, why: str) -> None:
        session, listener = self._session, self._listener
        self._session = self._listener = None
        self._breakpoints.clear()
        if session is not None:
            session.close()
            self.runner.control.call_main(lambda: sys.settrace(None))
        for hold in self._stopped.values():
            self.runner.paused.end(hold)
        self._stopped.clear()
        if listener is not None:
            listener.reply(DebugEnded(why))

    def _watch_lease(self, session: dap.Session) -> None:
        while self._session is session:
            time.sleep(1.0)
            if time.monotonic() - self._heard_at > LEASE_S:
                with self._lock:
                    if self._session is session:
                        self._end("its notebook no longer answers")

    # ------------------------------------------------------------------ requests

    def on_request(self, request: Request[Debug]) -> Any:
        """``debug``: a DAP request, answered with its response. Never waits."""
        self._heard_at = time.monotonic()
        message = request.body.message
        session = self._session
        command = message.get("command", "")
        if session is None:
            return dap.refusal(message, "the debugger is off on this rank")
        if command == "alive":
            return _done(message)
        if command == "modules":
            return _done(message, modules=_modules())
        if command == "setBreakpoints" and "digests" in message["arguments"]["source"]:
            self._break_cells(session, message, request.reply)
            return DEFERRED
        if command == "pause":
            running = self.runner.current
            if running is None or running.has_left:
                return dap.refusal(message, "no cell runs on this rank")
            message = _with(message, threadId=self._main)
        if command in _STEPS:
            if not self._stopped:
                return _done(message)
            chosen = self._main if self._main in self._stopped else min(self._stopped)
            message = _with(message, threadId=chosen)
        if command == "continue":
            if not self._stopped:
                return _done(message, allThreadsContinued=True)
            message = _with(message, threadId=min(self._stopped))
        if command == "threads":
            session.send(message, lambda reply: request.reply(self._worth_showing(reply)))
        else:
            session.send(message, request.reply)
        return DEFERRED

    def _break_cells(
        self, session: dap.Session, message: Message, reply: Callable[[Message], None]
    ) -> None:
        """Breakpoints of a cell: in all its runs so far, and in those to come."""
        arguments = message["arguments"]
        wanted = arguments.get("breakpoints", [])
        digests = set(arguments["source"]["digests"])
        for digest in digests:
            self._breakpoints[digest] = wanted
        files = [name for name in list(self.runner.cell_numbers) if _digest(name) in digests]
        for name in files:
            session.send(_breaks(name, wanted), _nobody)
        verified = [{"verified": True, "line": one["line"]} for one in wanted]
        reply(_done(message, breakpoints=verified))

    def on_new_cell(self, name: str) -> None:
        """On the main thread, before a cell's code is compiled under this name."""
        session = self._session
        wanted = self._breakpoints.get(_digest(name))
        if session is None or not wanted:
            return
        answered: wire.Inbox[Message] = wire.Inbox()
        session.send(_breaks(name, wanted), answered.put)
        with contextlib.suppress(queue.Empty):
            answered.get(timeout=dap.ASK_S)

    def _worth_showing(self, reply: Message) -> Message:
        """A rank is a thread to a frontend; its others are shown when they are stopped."""
        threads = (reply.get("body") or {}).get("threads", [])
        kept = [t for t in threads if t["id"] == self._main or t["id"] in self._stopped]
        return {**reply, "body": {"threads": kept}}

    # ------------------------------------------------------------------ events

    def _on_event(self, event: Message) -> None:
        body = event.get("body") or {}
        thread = body.get("threadId", 0)
        match event.get("event"):
            case "stopped":
                running = self.runner.current
                if thread == self._main and running is not None and running.interrupted:
                    self._go_on(thread)  # it is on its way out of the cell
                    return
                if thread not in self._stopped:
                    self._stopped[thread] = self.runner.paused.begin("debugger")
                body["isMain"] = thread == self._main
            case "continued":
                self._continued(thread)
            case "output":
                pass
            case _:
                return
        if (listener := self._listener) is not None:
            listener.send("debug", DebugEvent(event))

    def _continued(self, thread: int) -> None:
        hold = self._stopped.pop(thread, None)
        if hold is not None:
            self.runner.paused.end(hold)

    def _go_on(self, thread: int) -> None:
        if (session := self._session) is not None:
            arguments = {"threadId": thread, "singleThread": True}
            session.send({"command": "continue", "arguments": arguments}, _nobody)

    # ------------------------------------------------------------------ what cells ask of it

    def let_go(self) -> None:
        """The cell is interrupted: the main thread goes on, and is not stopped again in it."""
        if self._main in self._stopped:
            self._go_on(self._main)

    def stop_here(self) -> bool:
        """Stop this thread at the next line of the user's. False where the debugger is off."""
        if (session := self._session) is None:
            return False
        session.stop_here()
        return True

    def end_of_cell(self) -> None:
        """A step that was to end after the cell's last line would end in the next cell."""
        if self._session is not None:
            self._go_on(self._main)


def _digest(name: str) -> str:
    found = _DIGEST.search(name)
    return found[1] if found else ""


def _breaks(path: str, breakpoints: list[Message]) -> Message:
    source = {"path": path}
    arguments = {"source": source, "breakpoints": breakpoints, "sourceModified": False}
    return {"command": "setBreakpoints", "arguments": arguments}


def _with(message: Message, **arguments: Any) -> Message:
    return {**message, "arguments": {**message.get("arguments", {}), **arguments}}


def _done(message: Message, /, **body: Any) -> Message:
    return {**dap.refusal(message, ""), "success": True, "body": body}


def _nobody(reply: Message) -> None:
    """For what needs no answer."""


def _modules() -> list[Message]:
    """Those of files, as ipykernel tells them."""
    modules = []
    for number, (name, module) in enumerate(list(sys.modules.items())):
        path = getattr(getattr(module, "__spec__", None), "origin", None)
        if isinstance(path, str) and path.endswith(".py"):
            modules.append({"id": number, "name": name, "path": path})
    return modules
