"""The debuggers of a cluster's ranks as one: requests in the Debug Adapter Protocol (DAP).

A frontend knows one debugger. Here its requests go to the ranks whom they concern: those about a
frame or a variable to the rank that has it, *continue* and the steps to all that are stopped, and
breakpoints to all. Ranks are threads to it. The numbers by which DAP knows threads, frames and
variables are each rank's own, so they are renumbered.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import queue
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster.world import World
from jaxcluster.errors import JaxClusterError
from jaxcluster.model import rewrite
from jaxcluster.wire.link import Event, Sink, unwrap
from jaxcluster.wire.ops.debug import Debug, DebugEnded, DebugStart, DebugStop

Message = dict[str, Any]

FIRST = 1 << 50  # ipykernel's own numbers may be addresses, and JavaScript's integers end at 2^53
START_S = 30.0
ANSWER_S = 10.0
EVALUATE_S = 600.0  # what a user has typed may take its time
ALIVE_S = 10.0
STEPS = ("next", "stepIn", "stepOut")
KINDS = {
    "threadId": "thread",
    "frameId": "frame",
    "srcFrameId": "frame",
    "variablesReference": "variable",
}
_CELL_FILE = re.compile(r"/(\d+)-([0-9a-f]+)\.py$")


class Numbers:
    """What stands for a rank's threads, frames and variables where all ranks are one."""

    def __init__(self) -> None:
        self._next = itertools.count(FIRST)
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._meant: dict[int, tuple[int, int]] = {}

    def of(self, kind: str, rank: int, theirs: int) -> int:
        """The number for what rank ``rank`` calls ``theirs``. 0 means nothing, and stays 0."""
        if not theirs:
            return 0
        key = (kind, rank, theirs)
        if key not in self._numbers:
            self._numbers[key] = number = next(self._next)
            self._meant[number] = (rank, theirs)
        return self._numbers[key]

    def meant(self, arguments: Mapping[str, Any]) -> tuple[int, Message] | None:
        """Whose request has these arguments, and how that rank has them; None: no rank's."""
        for name in KINDS:
            if (found := self._meant.get(arguments.get(name) or 0)) is not None:
                return found[0], {**arguments, name: found[1]}
        return None


def cell_digests(code: str) -> list[str]:
    """By what the ranks may know a cell, given as it is in the notebook."""
    code = code if code.endswith("\n") else code + "\n"
    first, _, body = code.partition("\n")
    sources = [code, rewrite.with_all_lines(code)]
    if first.startswith("%%spmd"):
        line = first.removeprefix("%%spmd").strip()
        sources.append(rewrite.with_all_lines(rewrite.with_magic_line(line, body)))
    return list(dict.fromkeys(map(_digest, sources)))


def on_lines_of_code(code: str, breakpoints: Iterable[Message]) -> list[Message]:
    """Breakpoints of a cell, each moved to the line of code at or before it, as debugpy does it.

    debugpy alone can't: a cell with magics is no Python.
    """
    lines = [
        f"{line[: len(line) - len(line.lstrip())]}pass" if line.lstrip()[:1] in ("%", "!") else line
        for line in code.split("\n")
    ]
    if code.startswith("%%"):
        lines[0] = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            whole = compile("\n".join(lines), "<cell>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return list(breakpoints)
    there = sorted(_lines_of(whole))
    moved = []
    for one in breakpoints:
        before = [line for line in there if line <= one["line"]]
        moved.append({**one, "line": before[-1]} if before else one)
    return moved


def _lines_of(code: CodeType) -> set[int]:
    found = {line for _, _, line in code.co_lines() if line}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _lines_of(constant)
    return found


def _digest(source: str) -> str:
    return hashlib.blake2b(source.encode(errors="backslashreplace"), digest_size=6).hexdigest()


def cell_of_file(path: str) -> tuple[int, str] | None:
    """The number and the digest of the cell that a rank has under this file name."""
    if not path.startswith("/tmp/ipykernel_jaxcluster/"):
        return None
    found = _CELL_FILE.search(path)
    return (int(found[1]), found[2]) if found else None


def spare(thread: threading.Thread) -> None:
    """The notebook's own debugger neither traces nor stops it."""
    vars(thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)


class RankDebuggers:
    """The debuggers of one world's ranks. Thread-safe, but for what a frontend asks in turn.

    Args:
      on_event: told DAP events, renumbered, on a thread of its own.
      notebooks_path: the file name by which the frontend knows what a rank has under another.

    Attributes:
      is_lab: the frontend is JupyterLab, which shows one list of calls and no threads: the calls
        of the chosen rank come first in it, and the first of each other stopped rank's after them.
    """

    def __init__(
        self,
        on_event: Callable[[Message], None],
        notebooks_path: Callable[[str], str] = lambda path: path,
    ) -> None:
        self.world: World | None = None
        self.is_lab = True
        self.unreached: dict[int, str] = {}  # ranks without a debugger, and why
        self._on_event = on_event
        self._notebooks_path = notebooks_path
        self._numbers = Numbers()
        self._ids: list[str] = []
        self._sink = Sink()
        self._stopped: dict[int, list[int]] = {}  # threads, by rank
        self._chosen: int | None = None
        self._calls: dict[int, list[Message]] = {}  # of stopped ranks
        self._lock = threading.RLock()
        self._ready: dict[int, bool] = {}

    @property
    def is_on(self) -> bool:
        return self.world is not None

    @property
    def stopped(self) -> list[int]:
        """The ranks that are stopped."""
        with self._lock:
            return sorted(self._stopped)

    @property
    def stopped_threads(self) -> list[int]:
        """As DAP numbers them: the chosen rank's first."""
        with self._lock:
            ranks = sorted(self._stopped, key=lambda rank: (rank != self._shown(), rank))
            return [self._numbers.of("thread", r, t) for r in ranks for t in self._stopped[r]]

    def _shown(self) -> int | None:
        if self._chosen in self._stopped:
            return self._chosen
        return min(self._stopped, default=None)

    # ------------------------------------------------------------------ on and off

    def start(self, world: World) -> None:
        """Switch on the debugger of each rank. Those that can't are ``unreached``."""
        self.stop()
        self.world, self._sink = world, Sink()
        self.unreached = {}
        ready: wire.Inbox[int] = wire.Inbox()
        ranks = [rank for rank in world.link.ranks if rank not in world.dead]
        self._ids = world.link.request_each(dict.fromkeys(ranks, DebugStart()), sink=self._sink)
        listen = threading.Thread(
            target=self._listen, args=(self._sink, ready), name="jaxcluster-debug", daemon=True
        )
        spare(listen)
        listen.start()
        try:
            for _ in ranks:
                ready.get(timeout=START_S)
        except queue.Empty:
            pass

    def stop(self) -> None:
        """Switch it off: stopped ranks go on."""
        world, self.world = self.world, None
        if world is None:
            return
        world.link.gather(world.link.ranks, DebugStop(), timeout_s=ANSWER_S)
        world.link.forget(self._ids)
        self._sink.put(Event(-1, "over", "", None))
        with self._lock:
            self._stopped.clear()
            self._calls.clear()

    def _listen(self, sink: Sink, ready: wire.Inbox[int]) -> None:
        known: set[int] = set()
        while True:
            try:
                event = sink.get(timeout=ALIVE_S)
            except queue.Empty:
                if (world := self.world) is not None:
                    alive = dict.fromkeys(world.link.ranks, Debug({"command": "alive"}))
                    world.link.forget(world.link.request_each(alive, sink=Sink()))
                continue
            if event.op == "over":
                return
            if event.op == "debug" and event.body.event is not None:
                self._heard(event.rank, event.body.event)
                continue
            if event.op != "debug":
                self._lost(event)
            if event.rank not in known:
                known.add(event.rank)
                ready.put(event.rank)

    def _lost(self, event: Event[DebugEnded]) -> None:
        """A rank whose debugger does not start, or has ended."""
        try:
            why = unwrap(event).why
        except JaxClusterError as error:
            why = error.message
        with self._lock:
            self.unreached[event.rank] = why
            threads = self._stopped.pop(event.rank, [])
            self._calls.pop(event.rank, None)
        for thread in threads:
            self._tell("continued", event.rank, thread, {})

    # ------------------------------------------------------------------ events

    def _heard(self, rank: int, event: Message) -> None:
        body = event.get("body") or {}
        thread = body.get("threadId", 0)
        kind = event["event"]
        with self._lock:
            self._calls.pop(rank, None)
            if kind == "stopped":
                threads = self._stopped.setdefault(rank, [])
                if thread not in threads:
                    threads.append(thread)
            elif kind == "continued":
                left = [t for t in self._stopped.pop(rank, []) if t != thread]
                if left:
                    self._stopped[rank] = left
        if kind == "output":
            told = f"rank {rank}: {body.get('output', '')}"
            self._on_event({"type": "event", "event": "output", "body": {**body, "output": told}})
        else:
            self._tell(kind, rank, thread, body)

    def _tell(self, kind: str, rank: int, thread: int, body: Message) -> None:
        body = {**body, "threadId": self._numbers.of("thread", rank, thread)}
        if kind == "stopped":
            body |= {"allThreadsStopped": False, "text": f"rank {rank}"}
        else:
            body["allThreadsContinued"] = not self._stopped
        self._on_event({"type": "event", "event": kind, "body": body})

    # ------------------------------------------------------------------ requests

    def owns(self, message: Message) -> bool:
        """Whether a request is about a rank's thread, frame or variable."""
        return self._numbers.meant(message.get("arguments") or {}) is not None

    def request(self, message: Message) -> Message:
        """The response to a request that is about one rank, or about those that are stopped."""
        command = message["command"]
        if command in STEPS or command in ("continue", "pause"):
            return self._move(message)
        if command == "stackTrace" and self.is_lab and (shown := self._shown()) is not None:
            return done(message, stackFrames=self._stack(shown))
        meant = self._numbers.meant(message.get("arguments") or {})
        if meant is None:
            return refused(message, "No rank has the object that this request is about.")
        rank, arguments = meant
        if command == "stackTrace":
            return done(message, stackFrames=self._stack(rank))
        reply = self._ask(rank, {**message, "arguments": arguments})
        if command == "scopes":
            self._choose(rank)
        return self._renumbered(rank, reply)

    def _move(self, message: Message) -> Message:
        """Have all stopped ranks go on, or make a step; *pause*: all that run a cell."""
        command = message["command"]
        with self._lock:
            ranks = sorted(self._stopped)
            if command == "continue":
                self._chosen = None
        if command == "pause":
            ranks = [] if self.world is None else list(self.world.link.ranks)
        plain = {"type": "request", "command": command, "arguments": {}}
        replies = self._ask_all(ranks, plain)
        if command == "pause" and not any(reply.get("success") for reply in replies.values()):
            return refused(message, "No rank runs a cell.")
        failed = [reply for reply in replies.values() if not reply.get("success")]
        if failed and len(failed) == len(replies):
            return refused(message, failed[0].get("message", ""))
        return done(message, **({"allThreadsContinued": True} if command == "continue" else {}))

    def tell_all(self, message: Message) -> dict[int, Message]:
        """What each rank responds."""
        return self._ask_all([] if self.world is None else self.world.link.ranks, message)

    def threads(self) -> list[Message]:
        """Those of all ranks; a rank's main thread is called as the rank."""
        found = []
        replies = self.tell_all({"type": "request", "command": "threads"})
        for rank, reply in sorted(replies.items()):
            for thread in (reply.get("body") or {}).get("threads", []):
                name = f"rank {rank}"
                if thread["name"] != "MainThread":
                    name += f", {thread['name']}"
                found.append({"id": self._numbers.of("thread", rank, thread["id"]), "name": name})
        return found

    def set_breakpoints(self, source: Message, breakpoints: Sequence[Message]) -> list[Message]:
        """Set those of a cell (``digests``) or of a file (``path``) on all ranks.

        Returns:
          What one rank says of them.
        """
        arguments = {"source": source, "breakpoints": list(breakpoints), "sourceModified": False}
        request = {"type": "request", "command": "setBreakpoints", "arguments": arguments}
        for _, reply in sorted(self.tell_all(request).items()):
            if reply.get("success"):
                found: list[Message] = (reply.get("body") or {}).get("breakpoints", [])
                return found
        return []

    def _choose(self, rank: int) -> None:
        """A frame of ``rank`` is looked at: from now on its calls are shown."""
        with self._lock:
            if rank == self._shown() or not self.is_lab or rank not in self._stopped:
                return
            self._chosen = rank
            thread = self._stopped[rank][0]
        self._tell("stopped", rank, thread, {"reason": "chosen", "preserveFocusHint": True})

    # ------------------------------------------------------------------ calls

    def _stack(self, rank: int) -> list[Message]:
        with self._lock:
            shown = self._shown() if self.is_lab else rank
            ranks = sorted(self._stopped) if self.is_lab else [rank]
        self._fetch_calls(ranks)
        with self._lock:
            calls = {r: self._calls.get(r, []) for r in ranks}
        first = [*calls.get(shown, [])] if shown is not None else []
        return [*first, *(call for r in ranks if r != shown for call in calls[r][:1])]

    def _fetch_calls(self, ranks: Sequence[int]) -> None:
        """Ask for the calls of those whose are not known since they were stopped."""
        with self._lock:
            asked = {r: self._stopped[r][0] for r in ranks if r in self._stopped}
            asked = {r: thread for r, thread in asked.items() if r not in self._calls}
        bodies = {
            rank: {"type": "request", "command": "stackTrace", "arguments": {"threadId": thread}}
            for rank, thread in asked.items()
        }
        for rank, reply in self._gather(bodies, ANSWER_S).items():
            frames = (reply.get("body") or {}).get("stackFrames", [])
            for frame in frames:
                frame["id"] = self._numbers.of("frame", rank, frame["id"])
                frame["name"] = f"rank {rank}: {frame['name']}"
                self._rename(frame.get("source"))
            with self._lock:
                if rank in self._stopped and self._stopped[rank][0] == asked[rank]:
                    self._calls[rank] = frames

    def _rename(self, source: Any) -> None:
        if isinstance(source, dict) and isinstance(source.get("path"), str):
            source["path"] = self._notebooks_path(source["path"])
            source["sourceReference"] = 0

    # ------------------------------------------------------------------ messages

    def _renumbered(self, rank: int, reply: Message) -> Message:
        body = reply.get("body")
        if not isinstance(body, dict):
            return reply
        for one in (body, *body.get("scopes", ()), *body.get("variables", ())):
            if isinstance(one, dict) and "variablesReference" in one:
                number = self._numbers.of("variable", rank, one["variablesReference"])
                one["variablesReference"] = number
        return reply

    def _ask(self, rank: int, message: Message) -> Message:
        wait_s = EVALUATE_S if message["command"] in ("evaluate", "setExpression") else ANSWER_S
        found = self._gather({rank: message}, wait_s)
        reply = found.get(rank) or refused(message, f"Rank {rank} did not answer.")
        if not reply.get("success"):
            reply = refused(message, reply.get("message", ""))
        return {**reply, "request_seq": message.get("seq", 0)}

    def _ask_all(self, ranks: Iterable[int], message: Message) -> dict[int, Message]:
        return self._gather(dict.fromkeys(ranks, message), ANSWER_S)

    def _gather(self, bodies: Mapping[int, Message], timeout_s: float) -> dict[int, Message]:
        world = self.world
        if world is None or not bodies:
            return {}
        each = {rank: Debug(message) for rank, message in bodies.items()}
        events = world.link.gather(each, each, timeout_s=timeout_s)
        replies = {}
        for rank, event in events.items():
            try:
                replies[rank] = unwrap(event)
            except JaxClusterError as error:
                replies[rank] = refused(bodies[rank], error.message)
        return replies


def done(message: Message, /, **body: Any) -> Message:
    """A response that says yes."""
    return {
        "type": "response",
        "seq": message.get("seq", 0),
        "request_seq": message.get("seq", 0),
        "success": True,
        "command": message.get("command", ""),
        "body": body,
    }


def refused(message: Message, why: str) -> Message:
    """A response that says no. JupyterLab reads these lists all the same."""
    body: Message = {"stackFrames": [], "scopes": [], "variables": []}
    return {**done(message, **body), "success": False, "message": why}
