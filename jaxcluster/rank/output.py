"""A cell's output on a rank, on its way to the notebook that sent the cell, in order.

It joins three sources: Python's ``sys.stdout``/``sys.stderr``, IPython's displays, and file
descriptors 1 and 2. C code and subprocesses write to these, into the rank's log, which is complete
also after a crash. While a cell runs the log's new lines are shown, but for the transport's own
chatter.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.rank.arrays import spans_processes
from jaxcluster.rank.places import CELL_DIRECTORY, name_cells

if TYPE_CHECKING:
    from jaxcluster.rank.cells import CellRunner

# gloo's and XLA's own lines: "[Gloo] Rank 0 is connected to 3 peer ranks...", absl's and glog's
# "E0000 00:00:1729.1 12345 cuda.cc:1] ...", TSL's "2026-01-01 10:00:00.0: I external/...", NCCL's
# "gpu-07:123:456 [0] NCCL INFO ...".
CHATTER = re.compile(
    r"^(\[Gloo\] |[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d[ T][\d:.]+: [IWEF] |WARNING: All log messages "
    r"before absl|\[IPEngine|NCCL version \d|(\[[\d :-]+\] )?\S+:\d+:\d+ \[\d+\] (\S+ ){0,2}NCCL )"
)

# Two devices of one process write gloo's line at once and in pieces: "[Gloo] Rank [Gloo] Rank 01 is
# connected to 7 peer ranks. ...: 77". The remaining pieces are separate lines.
GLOO = re.compile(r"\[Gloo\] Rank|is connected to \d+ peer|connected peer ranks")
SCRAPS = re.compile(r"[\d\s]*")
READ_NBYTES = 1 << 22  # at a time: nobody waits for a flood of gigabytes

TAKEN = {"display_data", "update_display_data", "execute_result", "clear_output", "error"}
VIEW_MIME = "application/vnd.jupyter.widget-view+json"

Sink = Callable[[str, str], bool]


class RankStream(io.TextIOWrapper):
    """A ``sys.stdout`` whose text goes to the running cell's notebook, else to ``inner``."""

    def __init__(self, name: str, inner: Any, sink: Sink) -> None:
        self._inner = inner
        super().__init__(_Raw(name, inner, sink), "utf-8", "backslashreplace", write_through=True)

    def set_parent(self, parent: Any) -> None:
        """ipykernel says whose code runs: without it ipyparallel's clients get no output."""
        if hasattr(self._inner, "set_parent"):
            self._inner.set_parent(parent)


class _Raw(io.RawIOBase):
    """Takes the bytes of a ``RankStream``."""

    def __init__(self, name: str, inner: Any, sink: Sink) -> None:
        super().__init__()
        self.name, self._inner, self._sink = name, inner, sink

    def write(self, data: Any, /) -> int:
        taken = bytes(data)
        text = taken.decode("utf-8", "backslashreplace")
        if self.name == "stderr" and CELL_DIRECTORY in text:
            text = name_cells(text)
        if text and not self._sink(self.name, text):
            self._inner.write(text)
        return len(taken)

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        """A wrapper of a cell's closes it; the next one prints all the same."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2 if self.name == "stderr" else 1


def is_usable(stream: Any) -> bool:
    """Whether ``print`` may write to it."""
    with contextlib.suppress(Exception):  # it is detached, or of the user's class
        return hasattr(stream, "write") and not getattr(stream, "closed", False)
    return False


class LogTail:
    """New lines of the rank's log since this was made, without the transport's chatter."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = self._size()
        self._after_gloo = False

    def _size(self) -> int:
        return os.stat(self._path).st_size if os.path.exists(self._path) else 0

    def read(self, last: bool = False) -> str:
        """The text to show; only the end of very long text.

        Args:
          last: this is the cell's end: an unfinished line does not wait.
        """
        size = self._size()
        self._offset = min(self._offset, size)  # somebody has emptied it
        if self._offset == size:
            return ""
        note = ""
        if (too_many := size - self._offset - READ_NBYTES) > 0:
            note = f"\n[... {too_many:,} bytes, only in this rank's log ...]\n"
            self._offset += too_many
        with open(self._path, "rb") as log:
            log.seek(self._offset)
            data = log.read(size - self._offset)
        end = len(data) if last else data.rfind(b"\n") + 1
        self._offset += end
        lines = data[:end].decode(errors="replace").splitlines(keepends=True)
        return note + "".join(line for line in lines if not self._is_chatter(line))

    def _is_chatter(self, line: str) -> bool:
        if GLOO.search(line):
            self._after_gloo = True
            return True
        if self._after_gloo and SCRAPS.fullmatch(line):
            return True
        self._after_gloo = False
        return CHATTER.match(line) is not None


class CellOutput:
    """That of one rank's cells."""

    def __init__(self, runner: CellRunner) -> None:
        self._runner = runner
        self._showing = threading.Lock()  # held from the log's being read until it is sent

    def attach(self, shell: Any) -> None:
        """Take what ``shell`` displays, and its tracebacks, while a cell runs.

        Otherwise (a plain ipyparallel client runs code) it goes to ipyparallel's sockets as ever.
        """
        session = shell.kernel.session
        send = session.send

        def take_or_send(to: Any, what: Any, content: Any = None, *more: Any, **keys: Any) -> Any:
            made = what if isinstance(what, dict) else {"msg_type": what, "content": content}
            if made["msg_type"] in TAKEN and self._take(made["msg_type"], made["content"]):
                return None
            return send(to, what, content, *more, **keys)

        session.send = take_or_send

    def _take(self, kind: str, content: dict[str, Any]) -> bool:
        """Whether a message of IPython's goes to a notebook of ours."""
        if self._runner.current is None and not self._runner.comms.taking:
            return False
        content = {key: wire.plain(value) for key, value in content.items()}
        if "data" in content:  # nbformat asks for text in all but JSON's types
            content["data"] = {
                mime: one if mime.endswith("json") or isinstance(one, str) else wire.told(one)
                for mime, one in content["data"].items()
            }
            content["metadata"] = content["metadata"] or {}
        if kind == "error":
            self._runner.take_traceback(sys.exc_info()[1], content)
        else:
            self.emit(kind, content)
        return True

    def emit(self, kind: str, content: dict[str, Any]) -> bool:
        """Put out what a ``RankOutput`` has; False where no cell runs whose it could be."""
        runner = self._runner
        if runner.comms.divert(kind, content):
            return True
        data = content.get("data", {})
        if runner.is_child():  # without its parent's threads: it is shown as what C code prints
            text = content.get("text", data.get("text/plain", "") + "\n")
            fd = 2 if content.get("name") == "stderr" else 1
            os.write(fd, text.encode(errors="backslashreplace"))
            return True
        if (running := runner.current) is None:
            return False
        if VIEW_MIME in data and not runner.comms.is_shown(data[VIEW_MIME].get("model_id")):
            del data[VIEW_MIME]
        if kind == "execute_result":
            with contextlib.suppress(Exception):  # its text alone is shown
                if spans_processes(runner.shell.displayhook.exec_result.result):
                    content["array"] = True
        runner.history.add(kind, content)
        rank, seq = runner.rank, running.cell.seq
        if kind == "stream":
            runner.control.stream(running.request, rank, seq, content["name"], content["text"])
        else:
            running.request.send("output", wire.RankOutput(rank, seq, kind, content))
        return True

    def print(self, name: str, text: str) -> bool:
        """Take text that was written to a stream; False if no cell can have written it."""
        return self.emit("stream", {"name": name, "text": text})

    def show_pages(self) -> None:
        """Show the text that ``name?`` and pagers have left for the frontend."""
        payloads = self._runner.shell.payload_manager
        for payload in payloads.read_payload():
            if payload.get("source") == "page":
                self.emit(
                    "display_data",
                    {"data": wire.plain(payload["data"]), "metadata": {}, "transient": {}},
                )
        payloads.clear_payload()

    def show_log(self, last: bool = False) -> None:
        """On the control thread, while a cell runs: show new lines of the log.

        It waits for nobody: the main thread may wait for this one to send what was printed. The
        rest is read later.

        Args:
          last: this is the cell's end, on the main thread: show all that is left.
        """
        running, control = self._runner.current, self._runner.control
        if running is None or running.log is None:
            return
        may_send = last or not control.is_behind(running.request.ident)
        if may_send and self._showing.acquire(blocking=last):
            try:
                # Without ticks the cell has shown its rest, and may be over.
                if (last or control.ticking) and (text := running.log.read(last)):
                    self.print("stdout", text)
            except OSError:  # the cell has used up the file descriptors: another time
                pass
            finally:
                self._showing.release()
