"""Where a cell's output goes on a rank: to the notebook that sent the cell, in order.

Three sources are joined: Python's ``sys.stdout``/``sys.stderr``, IPython's displays, and what C
code and subprocesses write to file descriptors 1 and 2. The last go to the rank's log, which is
complete also after a crash. While a cell runs the log's new lines are shown, but for the
transport's own chatter.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.engine import tracebacks
from jaxcluster.engine.arrays import describe, spans_processes
from jaxcluster.engine.library_code import CELL_DIRECTORY, name_cells
from jaxcluster.host import kernel_private

if TYPE_CHECKING:
    from jaxcluster.engine.cells import CellRunner

# gloo's and XLA's own lines: "[Gloo] Rank 0 is connected to 3 peer ranks...", absl's and glog's
# "E0000 00:00:1729.1 12345 cuda.cc:1] ...", TSL's "2026-01-01 10:00:00.0: I external/...", NCCL's
# "gpu-07:123:456 [0] NCCL INFO ...".
CHATTER = re.compile(
    r"^(\[Gloo\] |[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d[ T][\d:.]+: [IWEF] |WARNING: All log messages "
    r"before absl|\[IPEngine|NCCL version \d|(\[[\d :-]+\] )?\S+:\d+:\d+ \[\d+\] (\S+ ){0,2}NCCL )"
)

# Two devices of one process write gloo's line at once and in pieces: "[Gloo] Rank [Gloo] Rank 01 is
# connected to 7 peer ranks. ...: 77", and what is left of it on lines of their own.
GLOO = re.compile(r"\[Gloo\] Rank|is connected to \d+ peer|connected peer ranks")
SCRAPS = re.compile(r"[\d\s]*")
READ_NBYTES = 1 << 20  # at a time while the cell runs, and of a line that does not end
LAST_NBYTES = 1 << 24  # at the cell's end, which nothing interrupts: a flood may be of gigabytes


class RankStream(io.TextIOBase):
    """A ``sys.stdout`` whose text goes to the running cell's notebook, else to ``inner``."""

    def __init__(self, name: str, fd: int, inner: Any, sink: Callable[[str, str], bool]) -> None:
        super().__init__()
        self.name = name
        self.inner = inner
        self._fd = fd
        self._sink = sink
        os.register_at_fork(after_in_child=self._in_child)

    def _in_child(self) -> None:
        """A process that the user has forked: it has no threads, so it writes to the log's end.

        What it prints is shown as what C code prints.
        """
        self.inner = open(self._fd, "w", buffering=1, closefd=False)  # noqa: SIM115
        self._sink = lambda name, text: False

    encoding = "utf-8"
    errors = "replace"

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        shown = text if text.isascii() else wire.clean(text)
        if self.name == "stderr" and CELL_DIRECTORY in shown:
            shown = name_cells(shown)
        if shown and not self._sink(self.name, shown):
            self.inner.write(shown)
        return len(text)

    def flush(self) -> None:
        self.inner.flush()

    @property
    def buffer(self) -> io.RawIOBase:
        """What takes bytes, as that of a script's own ``sys.stdout`` does."""
        return _Bytes(self)

    def reconfigure(self, **options: Any) -> None:
        """As of a script's own stream; this one is UTF-8, and holds nothing back."""

    def set_parent(self, parent: Any) -> None:
        """ipykernel says whose code runs: without it ipyparallel's clients get no output."""
        if hasattr(self.inner, "set_parent"):
            self.inner.set_parent(parent)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._fd


class _Bytes(io.RawIOBase):
    """Writes bytes to a ``RankStream``, as text."""

    def __init__(self, stream: RankStream) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, data: Any, /) -> int:
        taken = bytes(data)
        self._stream.write(taken.decode("utf-8", "backslashreplace"))
        return len(taken)


class LogTail:
    """New lines of the rank's log since ``reset``, without the transport's chatter."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._offset = 0
        self._partial = b""
        self._after_gloo = False
        self._lock = threading.Lock()  # the control thread and the main thread both read

    def reset(self) -> None:
        """Begin here."""
        with self._lock:
            self._offset, self._partial = self._size(0), b""

    def _size(self, unknown: int) -> int:
        try:
            return os.stat(self.path).st_size
        except OSError:
            return unknown

    def read(self, last: bool = False) -> str:
        """Text to show, of what there is by now; it may be left for later.

        Args:
          last: this is the cell's end: an unfinished line does not wait, and of very much the end
            is told alone.
        """
        with self._lock:
            size = self._size(self._offset)
            self._offset = min(self._offset, size)  # somebody has emptied it
            shown = ""
            if last and (too_many := size - self._offset - LAST_NBYTES) > 0:
                shown = self._take(b"", last=True)
                shown += f"\n[... {too_many:,} bytes, only in this rank's log ...]\n"
                self._offset += too_many
            nbytes, data = size - self._offset, b""
            if nbytes:
                nbytes = nbytes if last else min(nbytes, READ_NBYTES)
                with open(self.path, "rb") as log:
                    log.seek(self._offset)
                    data = log.read(nbytes)
                self._offset += nbytes
            return shown + self._take(data, last)

    def _take(self, data: bytes, last: bool) -> str:
        """Whole lines, or so much of one that it need not wait for its end."""
        self._partial += data
        end = len(self._partial) if last else self._partial.rfind(b"\n") + 1
        if not end and len(self._partial) > READ_NBYTES:
            end = len(self._partial)
        whole, self._partial = self._partial[:end], self._partial[end:]
        lines = whole.decode(errors="replace").splitlines(keepends=True)
        return "".join(line for line in lines if not self._is_chatter(line))

    def _is_chatter(self, line: str) -> bool:
        if GLOO.search(line):
            self._after_gloo = True
            return True
        if self._after_gloo and SCRAPS.fullmatch(line):
            return True
        self._after_gloo = False
        return CHATTER.match(line) is not None


VIEW_MIME = "application/vnd.jupyter.widget-view+json"
_JSON = re.compile(r"application/(.*\+)?json")
_TEXT = re.compile(r"text/|image/svg\+xml|application/javascript")


def mime_bundle(data: Any) -> dict[str, Any]:
    """A MIME bundle that every frontend and notebook file can carry, of whatever was displayed.

    nbformat asks for text in all but JSON's MIME types: bytes become base64 (text, where the type
    is text), other objects their ``repr``.
    """
    bundle = {}
    for key, value in dict(data).items():
        if value is not None:
            kind = wire.clean(str(key))
            is_text = isinstance(value, bytes | bytearray) and _TEXT.match(kind)
            made = value.decode("utf-8", "backslashreplace") if is_text else wire.plain(value)
            is_fit = isinstance(made, str) or _JSON.fullmatch(kind)
            bundle[kind] = made if is_fit else wire.told(value, 100_000)
    return bundle


def _shown(data: Any, metadata: Any) -> dict[str, Any]:
    made = wire.plain(metadata or {})
    return {"data": mime_bundle(data), "metadata": made if isinstance(made, dict) else {}}


class CellOutput:
    """That of one rank's cells.

    Attributes:
      log: what C code and subprocesses write to the rank's log.
    """

    def __init__(self, runner: CellRunner, log: LogTail) -> None:
        self._runner = runner
        self.log = log
        self._showing = threading.Lock()  # held from the log's being read until it is sent

    def attach(self, shell: Any) -> None:
        """Take what ``shell`` displays, and its tracebacks, while a cell runs.

        Otherwise (a plain ipyparallel client runs code) it goes to ipyparallel's sockets as ever.
        """
        publisher, hook = shell.display_pub, shell.displayhook
        publish, clear_output = publisher.publish, publisher.clear_output
        finish_displayhook = hook.finish_displayhook

        def take(
            data: dict[str, Any],
            metadata: dict[str, Any] | None = None,
            *,
            transient: dict[str, Any] | None = None,
            update: bool = False,
            **kwargs: Any,
        ) -> None:
            if not self.is_heard():
                publish(data, metadata, transient=transient, update=update, **kwargs)
                return
            named = (transient or {}).get("display_id")
            ids = {} if named is None else {"display_id": wire.clean(str(named))}
            kind = "update_display_data" if update else "display_data"
            self.emit(kind, {**_shown(data, metadata), "transient": ids})

        def take_clear_output(wait: bool = False) -> None:
            if self.is_heard():
                self.emit("clear_output", {"wait": wait})
            else:
                clear_output(wait)

        def take_result() -> None:
            if not self.is_heard():
                finish_displayhook()
            elif hook.msg and hook.msg["content"]["data"]:
                content = hook.msg["content"]
                self.emit("execute_result", _shown(content["data"], content["metadata"]))
                hook.msg = None

        def taking(show_traceback: Callable[..., Any]) -> Callable[..., Any]:
            def take_traceback(kind: type, error: BaseException, lines: list[str]) -> None:
                if self.is_heard():
                    self.take_traceback(error, lines)
                else:
                    show_traceback(kind, error, lines)

            return take_traceback

        publisher.publish, publisher.clear_output = take, take_clear_output
        hook.finish_displayhook = take_result
        kernel_private.replace_traceback_display(shell, taking)

    def is_heard(self) -> bool:
        """Whether what is displayed now goes to a notebook of ours."""
        return self._runner.current is not None or self._runner.comms.taker() is not None

    def emit(self, kind: str, content: dict[str, Any]) -> None:
        if self._runner.comms.divert(kind, content):
            return
        running = self._runner.current
        if running is None:
            return
        if self._runner.is_child():  # its text goes to the log
            print(content.get("data", {}).get("text/plain", ""))
            return
        view = content.get("data", {}).get(VIEW_MIME)
        if view is not None and not self._runner.comms.is_shown(view.get("model_id")):
            del content["data"][VIEW_MIME]
        if kind == "execute_result" and spans_processes(self._runner.last_result):
            with contextlib.suppress(Exception):  # its text alone is shown
                content["array"] = asdict(replace(describe(self._runner.last_result), shards=()))
        self._runner.history.add(kind, content)
        output = wire.RankOutput(self._runner.rank, running.cell.seq, kind, content)
        running.request.send("output", output)

    def take_traceback(self, error: BaseException, lines: list[str]) -> None:
        """IPython renders an error: the cell's own, or one that the cell itself has shown."""
        running = self._runner.current
        if running is not None:
            kernel_private.set_last_traceback(self._runner.shell, lines)
            if running.cell.message is None and not self._runner.in_a_cell(sys._getframe(1)):
                return
        told = {"ename": wire.type_name(type(error)), "evalue": tracebacks.message_of(error)}
        if self._runner.comms.divert("error", {**told, "traceback": lines}) or running is None:
            return
        if running.cell.message is not None:  # of what observes a widget
            with contextlib.suppress(Exception):  # IPython's renderer, on the user's exception
                at = tracebacks.in_a_cell(error.__traceback__, self._runner.cell_numbers)
                renderer = self._runner.shell.InteractiveTB
                lines = renderer.structured_traceback(type(error), error, at, tb_offset=0)
            info = tracebacks.error_info(error, lines, self._runner.cell_numbers)
            if running.error is None:
                running.error, running.raised = info, error
        else:
            text = "\n".join([*lines, ""])
            if not self.print("stderr", text):
                sys.stderr.write(text)
            running.printed = error

    def print(self, name: str, text: str) -> bool:
        if self._runner.comms.divert("stream", {"name": name, "text": text}):
            return True
        running = self._runner.current
        if running is None or self._runner.is_child():  # the parent writes what waits
            return False
        self._runner.history.text(name, text)
        self._runner.control.stream(
            running.request, self._runner.rank, running.cell.seq, name, text
        )
        return True

    def show_pages(self) -> None:
        """What ``name?`` and pagers have left for the frontend."""
        payloads = self._runner.shell.payload_manager
        if not (pages := payloads.read_payload()):
            return
        payloads.clear_payload()
        for payload in pages:
            if payload.get("source") == "page":
                self.emit("display_data", {**_shown(payload["data"], {}), "transient": {}})

    def tick(self) -> None:
        """On the control thread, while a cell runs: show what has come to the log.

        It waits for nobody: the main thread may wait for this one to send what was printed. What
        is not read now is read later.
        """
        running, control = self._runner.current, self._runner.control
        if running is None or control.is_behind(running.request.ident):
            return
        if self._showing.acquire(blocking=False):
            try:
                if control.ticking:  # else it has shown its rest, and may be over
                    self._show_log(last=False)
            except OSError:  # the cell has used up the file descriptors: another time
                pass
            finally:
                self._showing.release()

    def show_rest(self) -> None:
        """At a cell's end: all that the log has of it, after what the control thread shows now."""
        with self._showing:
            self._show_log(last=True)

    def _show_log(self, last: bool) -> None:
        running = self._runner.current
        if running is not None and running.shown and (text := self.log.read(last)):
            self.print("stdout", text)
