"""JupyterLab's debugger in a notebook with a cluster: the notebook's own and the ranks' as one.

ipykernel answers a frontend's ``debug_request`` on the kernel's control thread. What it would be
asked comes here first: what is about the ranks goes to theirs, the rest to ipykernel's own.
"""

from __future__ import annotations

import ast
import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ipykernel.compiler import get_file_name

from jaxcluster import cluster
from jaxcluster.cluster.rank_debuggers import (
    Message,
    RankDebuggers,
    cell_digests,
    cell_of_file,
    done,
    on_lines_of_code,
    refused,
    spare,
)
from jaxcluster.cluster.world import World
from jaxcluster.errors import JaxClusterError
from jaxcluster.host import kernel_private
from jaxcluster.ranks import by_value, name_ranks

T = TypeVar("T")

TO_ALL = ("setExceptionBreakpoints", "setFunctionBreakpoints")
MOVES = ("continue", "next", "stepIn", "stepOut")
OF_FRAMES = ("richInspectVariables", "copyToGlobals", "variables")  # handled for those of ranks
PACKAGE = Path(__file__).parent.parent
Handler = Callable[[Message], Awaitable[Message]]


class Debugger:
    """Stands before ipykernel's own debugger.

    Args:
      shell: of a notebook's kernel.
    """

    _ask_own: Handler  # ipykernel's

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.own: Any = getattr(shell.kernel, "debugger", None)  # none without debugpy
        self.ranks = RankDebuggers(self._publish, self._path_here)
        self._is_attached = False
        self._has_said = False  # who has no debugger
        self._breakpoints: dict[str, list[Message]] = {}  # as they were asked for, by file
        self._set: dict[str, list[Message]] = {}  # as they are
        self._to_all: dict[str, Message] = {}  # the last of each of TO_ALL
        self._dumped: dict[str, str] = {}  # the cells that the frontend has named, by file
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def install(self) -> None:
        if self.own is None:
            return
        self._ask_own, self.own.process_request = self.own.process_request, self.process_request
        self._code_name = self.shell.compile.get_code_name
        self.shell.compile.get_code_name = self._get_code_name

    def uninstall(self) -> None:
        if self.own is None:
            return
        self.own.process_request = self._ask_own
        self.shell.compile.get_code_name = self._code_name
        self.ranks.stop()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """In the notebook a cell of the ranks is one line, which sends it: none to stop at."""
        name = str(self._code_name(raw_code, transformed_code, number))
        if self._is_attached and sys.version_info < (3, 12) and sys.gettrace() is None:
            # An interrupt that is raised in a trace function ends it: the next cell sets it again.
            sys.modules["debugpy"].trace_this_thread(True)
        if self._is_attached and transformed_code.startswith("get_ipython().run_cell_magic('spmd'"):
            return f"<{name}>"
        return name

    # ------------------------------------------------------------------ before cells

    def before_cell(self, running: cluster.Cluster) -> None:
        """Ranks that are new since the debugger was switched on get theirs."""
        if not self._is_attached:
            return
        world = running.world
        world.meet()
        if self.ranks.world is not world:
            self._attach_ranks(world)
        if (unreached := self.ranks.unreached) and not self._has_said:
            self._has_said = True
            for why, ranks in sorted(by_value(unreached).items()):
                print(f"Breakpoints do not stop {name_ranks(ranks)}: {why}", file=sys.stderr)

    def _attach_ranks(self, world: World) -> None:
        with self._lock:
            if self.ranks.world is world:
                return
            self._has_said = False
            self.ranks.start(world)
            for message in self._to_all.values():
                self.ranks.tell_all(message)
            for path, breakpoints in self._breakpoints.items():
                self.ranks.set_breakpoints(self._source(path), breakpoints)

    # ------------------------------------------------------------------ requests

    async def process_request(self, message: Message) -> Message:
        """The response to a frontend's request. On the kernel's control thread."""
        is_theirs = self.ranks.is_on and self.ranks.owns(message)
        handler: Handler | None = getattr(self, f"_on_{message['command']}", None)
        if handler is not None and (is_theirs or message["command"] not in OF_FRAMES):
            return await handler(message)
        if self.ranks.is_on and message["command"] in MOVES and self.ranks.stopped:
            return await self._move(message)
        if is_theirs:
            return await self._in_thread(self.ranks.request, message)
        reply = await self._ask_own(message)
        if message["command"] in TO_ALL:
            self._to_all[message["command"]] = message
            if self.ranks.is_on:
                await self._in_thread(self.ranks.tell_all, message)
        return reply

    async def _on_initialize(self, message: Message) -> Message:
        arguments = message.get("arguments") or {}
        self.ranks.is_lab = arguments.get("clientID", "jupyterlab") == "jupyterlab"
        for thread in threading.enumerate():
            if thread.name.startswith("jaxcluster"):
                spare(thread)
        return await self._ask_own(message)

    async def _on_attach(self, message: Message) -> Message:
        ours = str(PACKAGE / "**")  # is stepped over, and is in no stack
        modules = getattr(self.own, "kernel_modules", None)
        if modules is None:  # ipykernel 6.29 sets no rules of its own
            rules = message.setdefault("arguments", {}).setdefault("rules", [])
            rules.append({"path": ours, "include": False})
        elif ours not in modules:
            modules.append(ours)
        reply = await self._ask_own(message)
        self._is_attached = True
        try:
            world = cluster.current().world
        except JaxClusterError:
            return reply
        await self._in_thread(self._attach_ranks, world)
        return reply

    async def _on_disconnect(self, message: Message) -> Message:
        self._is_attached = False
        await self._in_thread(self.ranks.stop)
        for known in (self._breakpoints, self._set, self._to_all):
            known.clear()
        return await self._ask_own(message)

    async def _on_debugInfo(self, message: Message) -> Message:
        reply = await self._ask_own(message)
        body = reply["body"]
        body["stoppedThreads"] = [*self.ranks.stopped_threads, *body["stoppedThreads"]]
        if self._is_attached:
            found = [{"source": path, "breakpoints": b} for path, b in self._set.items() if b]
            body["breakpoints"] = found
        return reply

    async def _on_dumpCell(self, message: Message) -> Message:
        reply = await self._ask_own(message)
        if reply.get("success"):
            self._dumped[reply["body"]["sourcePath"]] = message["arguments"]["code"]
        return reply

    async def _on_setBreakpoints(self, message: Message) -> Message:
        arguments = message["arguments"]
        path, wanted = arguments["source"]["path"], arguments.get("breakpoints") or []
        if (code := self._dumped.get(path)) is not None:
            wanted = on_lines_of_code(code, wanted)
            message = {**message, "arguments": {**arguments, "breakpoints": wanted}}
        reply = await self._ask_own(message)
        self._breakpoints[path] = wanted
        there: list[Message] = []
        if self.ranks.is_on:
            there = await self._in_thread(self.ranks.set_breakpoints, self._source(path), wanted)
        set_here = (reply.get("body") or {}).get("breakpoints") or []
        set_at = set_here if any(one.get("verified") for one in set_here) else there or set_here
        self._set[path] = [{"line": one.get("line")} for one in set_at]
        return done(message, breakpoints=set_at)

    async def _on_stackTrace(self, message: Message) -> Message:
        """A page may ask when all have gone on meanwhile: there are no calls then."""
        own_thread = message["arguments"].get("threadId") in self.own.stopped_threads
        if self.ranks.is_on and (self.ranks.owns(message) or self.ranks.stopped) and not own_thread:
            return await self._in_thread(self.ranks.request, message)
        reply = await self._ask_own(message)
        return reply if reply.get("success") else refused(message, reply.get("message", ""))

    async def _on_threads(self, message: Message) -> Message:
        reply = await self._ask_own(message)
        if self.ranks.is_on:
            reply["body"]["threads"] += await self._in_thread(self.ranks.threads)
        return reply

    async def _on_pause(self, message: Message) -> Message:
        """While ranks run a cell the notebook only waits for them: they are stopped."""
        if self.ranks.is_on:
            reply = await self._in_thread(self.ranks.request, message)
            if reply["success"]:
                return reply
        return await self._ask_own(message)

    async def _on_modules(self, message: Message) -> Message:
        reply = await self._ask_own(message)
        if not self.ranks.is_on:
            return reply
        there = await self._in_thread(self.ranks.tell_all, {"command": "modules"})
        modules = reply["body"]["modules"]
        known = {module["path"] for module in modules}
        for other in there.values():
            new = [m for m in other["body"]["modules"] if m["path"] not in known]
            modules += [{**m, "id": 1_000_000 + m["id"]} for m in new]
            known |= {m["path"] for m in new}
        return done(message, modules=modules, totalModules=len(modules))

    async def _on_richInspectVariables(self, message: Message) -> Message:
        arguments = message["arguments"]
        name = arguments["variableName"]
        if not name.isidentifier():
            return done(message, data={}, metadata={})
        code = f"get_ipython().display_formatter.format({name})"
        asked = {"expression": code, "frameId": arguments["frameId"], "context": "clipboard"}
        found = await self._ask_rank(message, "evaluate", asked)
        if not found.get("success"):
            return refused(message, found.get("message", ""))
        data, metadata = _read_bundle(found["body"]["result"])
        return done(message, data=data, metadata={k: v for k, v in metadata.items() if k in data})

    async def _ask_rank(self, message: Message, command: str, arguments: Message) -> Message:
        """Another request in the place of this one."""
        request = {"type": "request", "command": command, "seq": message["seq"]}
        return await self._in_thread(self.ranks.request, {**request, "arguments": arguments})

    async def _on_copyToGlobals(self, message: Message) -> Message:
        given = message["arguments"]
        source, target = given["srcVariableName"], given["dstVariableName"]
        if not (source.isidentifier() and target.isidentifier()):
            return refused(message, "Both names must be identifiers.")
        where = {"expression": f"globals()[{target!r}]", "frameId": given["srcFrameId"]}
        return await self._ask_rank(message, "setExpression", {**where, "value": source})

    async def _on_variables(self, message: Message) -> Message:
        reply = await self._in_thread(self.ranks.request, message)
        if isinstance(body := reply.get("body"), dict):
            found = body.get("variables", [])
            body["variables"] = [v for v in found if self.own.accept_variable(v["name"])]
        return reply

    async def _move(self, message: Message) -> Message:
        reply: Message = await self._in_thread(self.ranks.request, message)
        if self.own.stopped_threads:
            await self._ask_own(message)
        return reply

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """What waits for ranks leaves the control thread to others."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                2, "jaxcluster-debug", initializer=lambda: spare(threading.current_thread())
            )
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function, *arguments)

    # ------------------------------------------------------------------ events

    def _publish(self, event: Message) -> None:
        """Send an event to the frontends, from whatever thread."""
        publish = kernel_private.debug_publisher(self.shell.kernel)
        self.shell.kernel.control_thread.io_loop.add_callback(publish, event)

    # ------------------------------------------------------------------ files

    def _source(self, path: str) -> Message:
        """What the ranks know as the file ``path``: a cell, or a file."""
        code = self._dumped.get(path)
        return {"path": path} if code is None else {"digests": cell_digests(code)}

    def _path_here(self, path: str) -> str:
        """By what the frontend knows a file of a rank: its own name for a cell."""
        if (cell := cell_of_file(path)) is None:
            return path
        number, digest = cell
        history = self.shell.history_manager.input_hist_raw
        cells = [history[number]] if number < len(history) else []
        for code in [*cells, *self._dumped.values()]:
            if digest in cell_digests(code):
                return self._dump(code)
        return path

    def _dump(self, code: str) -> str:
        path = str(get_file_name(code))
        if not os.path.exists(path):
            with open(path, "w", encoding="utf-8") as file:
                file.write(code)
        return path


def _read_bundle(text: str) -> tuple[Message, Message]:
    try:
        data, metadata = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {}, {}
    return data, metadata
