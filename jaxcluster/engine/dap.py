"""pydevd, debugpy's core, in this process, spoken to in the Debug Adapter Protocol (DAP).

``debugpy.listen`` starts a process that listens on a TCP port of this host, and whoever connects to
it runs code as this user. Here pydevd is given one end of a socket pair instead: nobody else can
reach it. It is imported and traces only from ``Session`` on, until ``close``.

Names of pydevd that are not documented, seen in debugpy 1.8.22: ``pydevd.start_client``, which
``settrace`` asks for its socket, and ``pydevd_file_utils.exists``, without which there is no
breakpoint in a cell: a cell is no file.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from jaxcluster import wire
from jaxcluster.errors import UsageError

Message = dict[str, Any]

ASK_S = 10.0  # for what pydevd answers at once
START_S = 20.0
UNSEEN = (
    *("jax", "jaxlib", "numpy", "IPython", "ipykernel", "ipyparallel", "zmq", "tornado"),
    *("traitlets", "jupyter_client", "comm", "cloudpickle", "debugpy", "jaxcluster"),
)

_of_this_process: list[Session] = []  # the one there is; a child of fork forgets it


class Session:
    """One debug session. Thread-safe.

    Args:
      on_event: called with each DAP event, on a thread of the session.
      cells: the file names of cells.

    Raises:
      UsageError: there is no debugpy here, or another debugger is at work in this process.
    """

    def __init__(self, on_event: Callable[[Message], None], cells: Container[str]) -> None:
        pydevd = _import_pydevd(cells)
        self._on_event = on_event
        self._seq = itertools.count(1)
        self._waiting: dict[int, Callable[[Message], None]] = {}
        self._lock = threading.Lock()
        self._pydevd = pydevd
        self._ours, self._theirs = socket.socketpair()
        self._is_over = False
        started: wire.Inbox[BaseException | None] = wire.Inbox()
        thread = threading.Thread(
            target=self._serve, args=(started,), name="jaxcluster-debugger", daemon=True
        )
        spare_thread(thread)
        thread.start()
        if (error := started.get(timeout=START_S)) is not None:
            raise error
        self.ask("initialize", clientID="jaxcluster", adapterID="debugpy")
        # One thread alone is stopped: those that answer the notebook must go on.
        self.ask(
            "attach",
            debugOptions=["DebugStdLib"],  # what is not to be seen is said by ``rules``
            stopAllThreadsOnSuspend=False,
            rules=_rules(),
        )
        self.ask("configurationDone")
        _of_this_process[:] = [self]

    # ------------------------------------------------------------------ asking

    def send(self, message: Message, on_reply: Callable[[Message], None]) -> None:
        """Send a request; ``on_reply`` gets its response, with the request's own ``seq``."""
        seq = next(self._seq)
        asked = message.get("seq", 0)
        with self._lock:
            self._waiting[seq] = lambda reply: on_reply({**reply, "request_seq": asked})
            data = json.dumps({**message, "type": "request", "seq": seq}).encode()
            try:
                self._ours.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
            except OSError:
                self._waiting.pop(seq)
                on_reply(refusal(message, "the debugger was switched off"))

    def ask(self, command: str, /, **arguments: Any) -> Message:
        """What the response says.

        Raises:
          UsageError: it could not be done, or took too long.
        """
        reply: wire.Inbox[Message] = wire.Inbox()
        self.send({"command": command, "arguments": arguments}, reply.put)
        try:
            answer = reply.get(timeout=ASK_S)
        except queue.Empty:
            raise UsageError(f"The debugger did not answer {command!r} in {ASK_S:g} s.") from None
        if not answer.get("success"):
            raise UsageError(f"The debugger: {command}: {answer.get('message', 'it failed')}.")
        body = answer.get("body")
        return body if isinstance(body, dict) else {}

    def stop_here(self) -> None:
        """Stop the thread that calls it at the next line that is to be seen."""
        self._pydevd.settrace(
            suspend=True,
            trace_only_current_thread=True,
            patch_multiprocessing=False,
            notify_stdin=False,
        )

    # ------------------------------------------------------------------ its thread

    def _serve(self, started: wire.Inbox[BaseException | None]) -> None:
        try:
            self._start()
        except BaseException as error:
            started.put(error)
            return
        started.put(None)
        with contextlib.suppress(OSError, ValueError), self._ours.makefile("rb") as stream:
            while (message := _read(stream)) is not None:
                self._take(message)
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer(refusal({}, "the debugger was switched off"))

    def _start(self) -> None:
        """On a thread that ends with the session: pydevd also traces the one that starts it."""
        pydevd = self._pydevd
        start_client = pydevd.start_client
        pydevd.start_client = lambda host, port: self._theirs
        for thread in threading.enumerate():
            if thread.name.startswith("jaxcluster"):
                spare_thread(thread)
        try:
            pydevd.settrace(
                host="a socket pair",
                port=0,
                suspend=False,
                wait_for_ready_to_run=False,
                block_until_connected=True,
                patch_multiprocessing=False,
                notify_stdin=False,
            )
        finally:
            pydevd.start_client = start_client

    def _take(self, message: Message) -> None:
        if message.get("type") == "event":
            self._on_event(message)
            return
        with self._lock:
            answer = self._waiting.pop(message.get("request_seq", 0), None)
        if answer is not None:
            answer(message)

    # ------------------------------------------------------------------ its end

    def close(self) -> None:
        """Let all threads go on, and trace nothing more. A second time does nothing."""
        if self._is_over:
            return
        self._is_over = True
        with contextlib.suppress(UsageError):
            self.ask("disconnect", terminateDebuggee=False)
        self._pydevd.stoptrace()
        _of_this_process.clear()
        for end in (self._theirs, self._ours):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def spare_thread(thread: threading.Thread) -> None:
    """pydevd neither traces nor stops it."""
    vars(thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)


def refusal(request: Message, why: str) -> Message:
    """A response that says no."""
    return {
        "type": "response",
        "request_seq": request.get("seq", 0),
        "command": request.get("command", ""),
        "success": False,
        "message": why,
    }


def is_inside(file: str) -> bool:
    """Whether a file is the debugger's own."""
    return _FOLDER in file


_FOLDER = os.path.join("debugpy", "_vendored", "")


def _read(stream: Any) -> Message | None:
    """The next message; None at the end."""
    size = 0
    while line := stream.readline():
        if not line.strip():
            data = stream.read(size)
            if len(data) < size:
                return None
            message: Message = json.loads(data)
            return message
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            size = int(value)
    return None


def _import_pydevd(cells: Container[str]) -> Any:
    validation = "PYDEVD_DISABLE_FILE_VALIDATION"  # else it warns of frozen modules, on stderr
    before = os.environ.get(validation)
    os.environ[validation] = "1"
    try:
        import debugpy.server.api  # noqa: F401  (it makes pydevd speak DAP)
        import pydevd
        import pydevd_file_utils
    except ImportError as error:
        raise UsageError(f"debugpy can't be imported: {error}.", "pip install debugpy") from None
    finally:
        if before is None:
            os.environ.pop(validation, None)
    if pydevd.get_global_debugger() is not None:
        raise UsageError(
            "Another debugger is active in this process (debugpy.listen, or pydevd.settrace)."
        )
    known = getattr(pydevd_file_utils.exists, "of_files", pydevd_file_utils.exists)

    def exists(path: str) -> bool:
        return path in cells or bool(known(path))

    exists.of_files = known  # type: ignore[attr-defined]
    pydevd_file_utils.exists = exists
    return pydevd


def _rules() -> list[Message]:
    """What is stepped over and left out of stacks: the way from the engine to a cell, and JAX."""
    rules = []
    for name in UNSEEN:
        module = sys.modules.get(name)
        for folder in getattr(module, "__path__", None) or ():
            rules.append({"path": os.path.join(folder, "**"), "include": False})
    standard = Path(sysconfig.get_paths()["stdlib"])
    rules.append({"path": str(standard / "site-packages" / "**"), "include": True})
    rules.append({"path": str(standard / "**"), "include": False})
    return rules


def _let_go_in_child() -> None:
    """In a child of fork nobody answers for the debugger: a breakpoint would hold it for ever."""
    if not _of_this_process:
        return
    _of_this_process.clear()
    sys.settrace(None)
    threading.settrace(None)
    if (monitoring := getattr(sys, "monitoring", None)) is not None:
        with contextlib.suppress(ValueError):
            monitoring.set_events(monitoring.DEBUGGER_ID, 0)
    with contextlib.suppress(Exception):  # debugpy's own, which may be half set up
        import pydevd

        pydevd.set_global_debugger(None)


os.register_at_fork(after_in_child=_let_go_in_child)
