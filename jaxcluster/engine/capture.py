"""Where a cell's output goes on a rank: to the notebook that sent the cell, in order.

Three sources are joined: Python's ``sys.stdout``/``sys.stderr``, IPython's displays, and what C
code and subprocesses write to file descriptors 1 and 2. The last go to the rank's log, which is
complete also after a crash; while a cell runs the log's new lines are shown, but for the
transport's own chatter.
"""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Callable
from typing import Any

from jaxcluster import wire
from jaxcluster.host import kernel_private

# gloo's and XLA's own lines: "[Gloo] Rank 0 is connected to 3 peer ranks...", absl's and glog's
# "E0000 00:00:1729.1 12345 cuda.cc:1] ...", TSL's "2026-01-01 10:00:00.0: I external/...", NCCL's
# "gpu-07:123:456 [0] NCCL INFO ...".
CHATTER = re.compile(
    r"^(\[Gloo\] |[IWEF]\d{4} \d\d:|\d{4}-\d\d-\d\d[ T][\d:.]+: [IWEF] |WARNING: All log messages "
    r"before absl|\[IPEngine|NCCL version \d|(\[[\d :-]+\] )?\S+:\d+:\d+ \[\d+\] (\S+ ){0,2}NCCL )"
)

# Lines that go on with what one of these has said: the end of a message of ptxas, what XLA's
# allocator says of its memory once there is none left.
GOES_ON = re.compile(
    r"\s*$|=== Source Location Trace: ===|external/xla\S+:\d+\s*$|If this is caused by memory "
    r"fragmentation, |Current allocation summary follows\.|(Limit|(Max|Peak)?InUse|NumAllocs|"
    r"MaxAllocSize|Reserved|Peak(Reserved|Allocated)|LargestFreeBlock): +\d"
)

# Two devices of one process write gloo's line at once and in pieces: "[Gloo] Rank [Gloo] Rank 01 is
# connected to 7 peer ranks. ...: 77", and what is left of it on lines of their own.
GLOO = re.compile(r"\[Gloo\] Rank|is connected to \d+ peer|connected peer ranks")
SCRAPS = re.compile(r"[\d\s]*")
READ_NBYTES = 1 << 20  # at a time while the cell runs, and of a line that does not end
LAST_NBYTES = 1 << 24  # at the cell's end, which nothing interrupts: a flood may be of gigabytes

Emit = Callable[[str, dict[str, Any]], None]
Tell = Callable[[BaseException, list[str]], None]


# Equal on all ranks: a cell's file name is part of its program's fingerprint in JAX.
CELL_DIRECTORY = "/tmp/ipykernel_jaxcluster"
_FILE = rf"{CELL_DIRECTORY}/(\d+)-[0-9a-f]{{12}}\.py"
_PLACE = re.compile(rf'File "{_FILE}", line (\d+)|{_FILE}:(\d+)')


def name_cells(text: str) -> str:
    """A traceback or a warning as Python writes it, with ``cell [9] line 5`` for a cell's file."""
    return _PLACE.sub(lambda at: f"cell [{at[1] or at[3]}] line {at[2] or at[4]}", text)


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
        self._in_old_line = False
        self._after_gloo = self._after_chatter = False
        self._lock = threading.Lock()  # the control thread and the main thread both read

    def reset(self) -> None:
        """Begin here. The rest of chatter that is half written now is chatter, too."""
        with self._lock:
            self._offset = self._size()
            self._partial = b""
            self._in_old_line = self._after_chatter = False
            if self._offset:
                with open(self.path, "rb") as log:
                    log.seek(max(0, self._offset - 1000))
                    end = log.read().decode(errors="replace")
                line = end.rpartition("\n")[2]
                self._in_old_line = bool(line) and _begins_chatter(line)
                self._after_gloo = GLOO.search(end) is not None

    def _size(self, unknown: int = 0) -> int:
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
            return self._read(last)

    def _read(self, last: bool) -> str:
        size = self._size(self._offset)
        self._offset = min(self._offset, size)  # somebody has emptied it
        shown = []
        if last and (too_many := size - self._offset - LAST_NBYTES) > 0:
            shown.append(self._take(b"", last=True))
            shown.append(f"\n[... {too_many:,} bytes, only in this rank's log ...]\n")
            self._offset += too_many
            self._in_old_line = False
        end = size if last else min(size, self._offset + READ_NBYTES)
        if self._offset < end:
            with open(self.path, "rb") as log:
                log.seek(self._offset)
                while data := log.read(min(READ_NBYTES, end - self._offset)):
                    self._offset += len(data)
                    shown.append(self._take(data))
        if last:
            shown.append(self._take(b"", last=True))
        return "".join(shown)

    def _take(self, data: bytes, last: bool = False) -> str:
        if self._in_old_line:
            _, newline, data = data.partition(b"\n")
            self._in_old_line = not newline
        self._partial += data
        if not self._partial:
            return ""
        end = len(self._partial) if last else self._partial.rfind(b"\n") + 1
        if not end and len(self._partial) > READ_NBYTES:
            end = _before_last_character(self._partial)
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
        if CHATTER.match(line) is None and not (self._after_chatter and GOES_ON.match(line)):
            self._after_chatter = False
            return False
        self._after_chatter = True
        return True


def _before_last_character(data: bytes) -> int:
    """Where UTF-8 may be cut: of its last character there may be more to come."""
    is_first = (len(data) - k for k in range(1, 5) if data[-k] & 0xC0 != 0x80)
    return next(is_first, len(data))


def _begins_chatter(half: str) -> bool:
    """Whether half a line is the transport's. Anybody else's goes on in the next cell's output."""
    return bool(GLOO.search(half) or CHATTER.match(half)) or "[Gloo] Rank".startswith(half)


def capture_displays(shell: Any, emit: Emit, tell: Tell, active: Callable[[], bool]) -> None:
    """Send what ``shell`` displays to ``emit(message_type, content)`` while ``active()``.

    And its tracebacks to ``tell(error, lines)``.

    Otherwise (a plain ipyparallel client runs code) it goes to ipyparallel's own sockets as ever.
    """
    publisher, hook = shell.display_pub, shell.displayhook
    publish, clear_output = publisher.publish, publisher.clear_output
    finish_displayhook = hook.finish_displayhook

    def captured_publish(
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        if not active():
            publish(data, metadata, transient=transient, update=update, **kwargs)
            return
        emit(
            "update_display_data" if update else "display_data",
            {
                "data": mime_bundle(data),
                "metadata": _dict(metadata),
                "transient": _transient(transient),
            },
        )

    def captured_clear_output(wait: bool = False) -> None:
        if active():
            emit("clear_output", {"wait": wait})
        else:
            clear_output(wait)

    def captured_finish_displayhook() -> None:
        if not active():
            finish_displayhook()
        elif hook.msg and hook.msg["content"]["data"]:
            content = hook.msg["content"]
            emit(
                "execute_result",
                {"data": mime_bundle(content["data"]), "metadata": _dict(content["metadata"])},
            )
            hook.msg = None

    def capturing(show_traceback: Callable[..., Any]) -> Callable[..., Any]:
        def captured_traceback(etype: type, evalue: BaseException, stb: list[str]) -> None:
            if active():
                tell(evalue, stb)
            else:
                show_traceback(etype, evalue, stb)

        return captured_traceback

    publisher.publish = captured_publish
    publisher.clear_output = captured_clear_output
    hook.finish_displayhook = captured_finish_displayhook
    kernel_private.replace_traceback_display(shell, capturing)


# --------------------------------------------------------------------------- what a bundle may hold

_JSON = re.compile(r"application/(.*\+)?json")
_TEXT = re.compile(r"text/|image/svg\+xml|application/javascript")


def mime_bundle(data: Any) -> dict[str, Any]:
    """A MIME bundle that every frontend and notebook file can carry, of whatever was displayed.

    nbformat asks for text in all but JSON's MIME types: bytes become base64 (text, where the type
    is text), other objects their ``repr``.
    """
    bundle = {}
    for key, value in dict(data).items():
        kind = wire.clean(key) if type(key) is str else wire.told(key, 100)
        if value is not None:
            bundle[kind] = wire.plain(value) if _JSON.fullmatch(kind) else _text(kind, value)
    return bundle


def _text(kind: str, value: Any) -> str:
    if type(value) is str:
        return wire.clean(value)
    if isinstance(value, bytes | bytearray) and _TEXT.match(kind):
        return value.decode("utf-8", "backslashreplace")
    made = wire.plain(value)
    if type(value) in (list, tuple) and all(type(part) is str for part in value):
        return "".join(made)
    return made if isinstance(made, str) else wire.told(value, 100_000)


def _dict(metadata: Any) -> dict[str, Any]:
    made = wire.plain(metadata) if metadata else {}
    return made if isinstance(made, dict) else {}


def _transient(transient: Any) -> dict[str, Any]:
    made = _dict(transient)
    if (display_id := made.get("display_id")) is not None and not isinstance(display_id, str):
        made["display_id"] = json.dumps(display_id)  # it must be fit for a key
    return made
