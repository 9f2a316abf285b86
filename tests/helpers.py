"""What the tests of several folders share: waiting, processes, notebooks."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from jupyter_client import BlockingKernelClient, KernelManager
from pace import Deadline

T = TypeVar("T")

DEADLINE_S = 60.0  # a busy machine with 2 cores may take that long for anything at all
GONE_S = 10.0  # what is to be ended is gone within this, the issue says, even after kill -9
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
NOTEBOOK = "JAXCLUSTER_TEST_NOTEBOOK"  # carried by all that a test's notebook has started


# How many devices each rank of a module's cluster has. With one, collectives run inline.
DEVICES = (
    pytest.param(1, id="D=1", marks=pytest.mark.any_jax),
    pytest.param(2, id="D=2", marks=pytest.mark.newest_jax),
)


def until(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """The first true value of ``condition``, or a failure that says for what it was waited."""
    deadline = Deadline(deadline_s)
    while not (found := condition()):
        if deadline.is_over:
            raise AssertionError(f"not within {deadline}: {what}")
        time.sleep(0.01)
    return found


def free_port() -> int:
    """On loopback; not one that the system gives to whoever asks for any, perhaps meanwhile."""
    while True:
        port = random.randrange(10_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def python(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this Python to its end, whatever that is."""
    return subprocess.run(
        [sys.executable, *arguments],
        check=False,
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
    )


def plain(text: str) -> str:
    """Text without the terminal's colours."""
    return ANSI.sub("", text)


def last_launch(cluster: Any) -> int:
    """The number of the last launch that all of its ranks agreed on."""
    return int(cluster.look(1).agreed[-1].number)


# ------------------------------------------------------------------------------------- processes


def processes_with(variable: str, value: str) -> dict[int, str]:
    """The living processes that carry an environment variable, by pid, with their command lines.

    What a process has been started with is inherited by all that it starts, however often they
    fork and whoever has become their parent. This process is left out.
    """
    found = {}
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(variable) == value:
                found[process.pid] = " ".join(process.cmdline())
        except psutil.Error:  # gone in the meantime, or somebody else's
            continue
    return found


def wait_until_gone(variable: str, value: str, deadline_s: float = GONE_S) -> None:
    deadline = Deadline(deadline_s)
    while left := processes_with(variable, value):
        if deadline.is_over:
            raise AssertionError(f"still there after {deadline}: {left}")
        time.sleep(0.05)


@dataclass(frozen=True)
class Home:
    """Folders of a test's own for clusters, IPython and Jupyter.

    Their path is short: a Unix socket's has room for some 100 characters. At the end of ``with``
    they are gone, also where a test has failed: a detached cluster that it left behind ends then.
    """

    path: Path

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    @classmethod
    def make(cls) -> Home:
        return cls(Path(tempfile.mkdtemp(prefix="jc", dir="/tmp")))

    @property
    def variables(self) -> dict[str, str]:
        return {
            "JAXCLUSTER_RUNTIME_DIR": str(self.path / "run"),
            "IPYTHONDIR": str(self.path / "ipython"),
            "XDG_CONFIG_HOME": str(self.path / "xdg"),
            "JUPYTER_RUNTIME_DIR": str(self.path / "jupyter"),
        }

    def environ(self, **more: str) -> dict[str, str]:
        return os.environ | self.variables | more

    def processes(self) -> dict[int, str]:
        return processes_with("JAXCLUSTER_RUNTIME_DIR", self.variables["JAXCLUSTER_RUNTIME_DIR"])

    def wait_until_empty(self, deadline_s: float = GONE_S) -> None:
        """Fail if a process of this home is still there after ``deadline_s``."""
        wait_until_gone(
            "JAXCLUSTER_RUNTIME_DIR", self.variables["JAXCLUSTER_RUNTIME_DIR"], deadline_s
        )

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


# ------------------------------------------------------------------------------------- notebooks


@dataclass
class Cell:
    """A cell as a frontend shows it: its outputs are folded as JupyterLab does it."""

    msg_id: str
    source: str
    outputs: list[dict[str, Any]] = field(default_factory=list)
    reply: dict[str, Any] | None = None
    idle: bool = False
    _clear_first: bool = False

    @property
    def done(self) -> bool:
        return self.idle and self.reply is not None

    def take(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "status":
            self.idle = content["execution_state"] == "idle"
        elif kind == "clear_output":
            if content["wait"]:
                self._clear_first = True
            else:
                self.outputs.clear()
        elif kind in ("stream", "display_data", "execute_result", "error"):
            if self._clear_first:
                self._clear_first = False
                self.outputs.clear()
            last = self.outputs[-1] if self.outputs else {}
            if kind == "stream" and last.get("name") == content["name"]:
                last["text"] += content["text"]
            else:
                self.outputs.append({"kind": kind, **content})

    def _streamed(self, name: str) -> str:
        return "".join(o["text"] for o in self.outputs if o.get("name") == name)

    @property
    def stdout(self) -> str:
        return self._streamed("stdout")

    @property
    def stderr(self) -> str:
        return self._streamed("stderr")

    @property
    def kinds(self) -> list[str]:
        return [o["name"] if o["kind"] == "stream" else o["kind"] for o in self.outputs]

    @property
    def bundles(self) -> list[dict[str, Any]]:
        """What was displayed, as MIME bundles; the result is one of them."""
        return [o["data"] for o in self.outputs if "data" in o]

    @property
    def result(self) -> str:
        """The text of ``Out[n]``; "" if there is none."""
        found = [o["data"]["text/plain"] for o in self.outputs if o["kind"] == "execute_result"]
        return found[-1] if found else ""

    @property
    def text(self) -> str:
        """All text under the cell, as it is read; errors too, without colours."""
        parts = []
        for output in self.outputs:
            if output["kind"] == "stream":
                parts.append(output["text"])
            elif output["kind"] == "error":
                parts.append("\n".join(output["traceback"]) + "\n")
            else:
                parts.append(output["data"].get("text/plain", "") + "\n")
        return plain("".join(parts))

    @property
    def error(self) -> str:
        """The traceback as text without colours; "" if there was no error."""
        found = [o for o in self.outputs if o["kind"] == "error"]
        return plain("\n".join(found[-1]["traceback"])) if found else ""

    @property
    def ename(self) -> str:
        found = [o["ename"] for o in self.outputs if o["kind"] == "error"]
        return found[-1] if found else ""


@dataclass(frozen=True)
class CommMessage:
    """What the kernel has sent on a comm, and when it came here."""

    at: float
    kind: str
    comm_id: str
    data: dict[str, Any]


class Notebook:
    """A real kernel, driven by messages as a frontend drives it."""

    def __init__(self, directory: Path, env: Mapping[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.closed = False
        self.cells: dict[str, Cell] = {}
        self.comm_messages: list[CommMessage] = []
        self.questions: list[dict[str, Any]] = []  # what the kernel asks, and has no answer yet
        self.manager = self.start_kernel(directory, {NOTEBOOK: self.mark} | dict(env or {}))
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=DEADLINE_S)

    def start_kernel(self, directory: Path, variables: dict[str, str]) -> KernelManager:
        manager = KernelManager(kernel_name="python3")
        manager.start_kernel(env=os.environ | variables, cwd=str(directory))
        return manager

    # ------------------------------------------------------------------ cells

    def begin(
        self,
        source: str,
        cell_id: str = "",
        allow_stdin: bool = False,
    ) -> Cell:
        """Send a cell, and do not wait for it.

        Its id goes with it as JupyterLab sends it. With ``allow_stdin`` it may ask; ``answer``
        answers.
        """
        cell = Cell("", source)
        sent = {"cellId": cell_id} if cell_id else {}
        content = {"code": source, "silent": False, "store_history": True, "stop_on_error": False}
        content |= {"user_expressions": {}, "allow_stdin": allow_stdin}
        cell.msg_id = self.send("execute_request", content, sent)
        self.cells[cell.msg_id] = cell
        return cell

    def send(
        self,
        kind: str,
        content: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        subshell_id: str | None = None,
        channel: str = "shell",
    ) -> str:
        """Send any message; returns its id."""
        message = self.client.session.msg(kind, content, metadata=metadata)
        if subshell_id is not None:
            message["header"]["subshell_id"] = subshell_id
        getattr(self.client, f"{channel}_channel").send(message)
        return str(message["header"]["msg_id"])

    def run(self, source: str, deadline_s: float = DEADLINE_S, cell_id: str = "") -> Cell:
        """Run a cell to its end, whether or not that is an error."""
        cell = self.begin(source, cell_id)
        self.wait(cell, deadline_s)
        return cell

    def ok(self, source: str, deadline_s: float = DEADLINE_S, cell_id: str = "") -> Cell:
        """Run a cell that must not end in an error."""
        cell = self.run(source, deadline_s, cell_id)
        assert not cell.error, f"{source}\n{cell.text}"
        return cell

    def wait(self, cell: Cell, deadline_s: float = DEADLINE_S) -> Cell:
        return self.until(
            lambda: cell if cell.done else None, f"end of {cell.source!r}", deadline_s
        )

    def until(self, condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
        """Like ``until``, while the kernel's messages are taken in."""
        deadline = Deadline(deadline_s)
        while not (found := condition()):
            if deadline.is_over:
                shown = "\n".join(f"{c.source}\n--> {c.text}" for c in self.cells.values())
                raise AssertionError(f"not within {deadline}: {what}\n{shown[-4000:]}")
            self._take_in(0.02)
        return found

    def answer(self, answers: list[tuple[str, str]]) -> None:
        """Wait for the kernel's next question, and answer it by the first that fits its prompt.

        That is taken from ``answers``.
        """
        self.until(lambda: self.questions, f"a question to answer by one of {answers}")
        question = self.questions.pop(0)
        prompt = question["content"]["prompt"]
        found = [answer for answer in answers if prompt.startswith(answer[0])]
        assert found, f"{prompt!r}, and the answers are {answers}"
        answers.remove(found[0])
        content = {"value": found[0][1]}
        reply = self.client.session.msg("input_reply", content, parent=question["header"])
        self.client.stdin_channel.send(reply)

    def talk(self, source: str, *answers: tuple[str, str]) -> Cell:
        """Run a cell that asks: (how its prompt begins, the answer) for each question."""
        cell = self.begin(source, allow_stdin=True)
        left = list(answers)
        while left:
            self.answer(left)
        return self.wait(cell)

    def _take_in(self, timeout_s: float) -> None:
        with contextlib.suppress(queue.Empty):
            self.questions.append(self.client.get_stdin_msg(timeout=0))
        try:
            message = self.client.get_iopub_msg(timeout=timeout_s)
        except queue.Empty:
            pass
        else:
            self._take(message)
        while True:
            try:
                reply = self.client.get_shell_msg(timeout=0)
            except queue.Empty:
                return
            if (cell := self.cells.get(reply["parent_header"].get("msg_id"))) is not None:
                cell.reply = reply["content"]

    def _take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind in ("comm_open", "comm_msg", "comm_close"):
            data = content.get("data", {})
            self.comm_messages.append(CommMessage(time.time(), kind, content["comm_id"], data))
        elif kind == "update_display_data":
            for cell in self.cells.values():
                for output in cell.outputs:
                    id = output.get("transient", {}).get("display_id")
                    if id is not None and id == content["transient"]["display_id"]:
                        output["data"] = content["data"]
        elif (cell := self.cells.get(message["parent_header"].get("msg_id"))) is not None:
            cell.take(kind, content)

    def ask(self, method: str, code: str, cursor: int | None = None, **kwargs: Any) -> Any:
        """A frontend's ``complete`` or ``inspect`` request, with the cursor at the end."""
        at = len(code) if cursor is None else cursor
        return self._answer(getattr(self.client, method)(code, at, **kwargs))

    def comms(self, target: str) -> Any:
        """The open comms of a target, by their ids."""
        return self._answer(self.send("comm_info_request", {"target_name": target}))["comms"]

    def _answer(self, id: str) -> Any:
        deadline = Deadline(DEADLINE_S)
        while not deadline.is_over:
            reply = self.client.get_shell_msg(timeout=DEADLINE_S)
            if reply["parent_header"].get("msg_id") == id:
                return reply["content"]
        raise AssertionError(f"no answer to message {id}")

    # ------------------------------------------------------------------ life

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def processes(self) -> dict[int, str]:
        """The kernel and all that it has started."""
        return processes_with(NOTEBOOK, self.mark)

    def press_stop(self) -> None:
        """What the stop button does: SIGINT for the kernel."""
        self.manager.interrupt_kernel()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Shut the kernel down; whatever it had started must be gone then."""
        if self.closed:
            return
        self.closed = True
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        self.manager.cleanup_resources()
        self.manager.context.destroy()
        wait_until_gone(NOTEBOOK, self.mark)
