"""Folds what the ranks say during a cell into one view of it: rank 0 shown, the rest kept.

Pure: outputs and replies go in, in the order of their arrival; groups of equal ranks come out.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxcluster import wire
from jaxcluster.ranks import by_value, format_ranks, name_ranks

MESSAGE_CHARS = 200  # of the message of an error like the one that is shown whole
KEPT_CHARS = 10_000_000  # of one rank's printed text in one cell; the rest is counted only
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class RankRecord:
    """All output of one rank in one cell, in order; neighbouring text is joined."""

    rank: int
    pieces: list[wire.RankOutput] = field(default_factory=list)
    reply: wire.CellReply | None = None
    died: str = ""
    dropped_chars: int = 0
    _texts: list[str] = field(default_factory=list)
    _name: str = ""
    _chars: int = 0
    _clear_first: bool = False  # clear_output(wait=True): at the next output
    # The panel reads the output of a cell so far on a thread of its own.
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def add(self, output: wire.RankOutput) -> None:
        with self._lock:
            self._add(output)

    def _add(self, output: wire.RankOutput) -> None:
        if output.kind == "clear_output":
            self._clear_first = bool(output.content.get("wait"))
            if not self._clear_first:
                self._clear()
            return
        if output.kind == "update_display_data" and self._update(output):
            return
        if self._clear_first:
            self._clear_first = False
            self._clear()
        if output.kind != "stream":
            self._join()
            self.pieces.append(output)
            return
        name, text = output.content["name"], output.content["text"]
        if name != self._name:
            self._join()
            self._name = name
        room = KEPT_CHARS - self._chars
        self.dropped_chars += max(0, len(text) - room)
        self._texts.append(text[: max(0, room)])
        self._chars += min(len(text), max(0, room))

    def _clear(self) -> None:
        self._texts, self._name, self._chars = [], "", 0
        self.pieces, self.dropped_chars = [], 0

    def _update(self, output: wire.RankOutput) -> bool:
        """Change the display that it names, if that was made in this cell."""
        self._join()
        found = False
        for number, piece in enumerate(self.pieces):
            if _display_id(piece) is not None and _display_id(piece) == _display_id(output):
                new = {k: output.content[k] for k in ("data", "metadata")}
                self.pieces[number] = replace(piece, content=piece.content | new)
                found = True
        return found

    def _join(self) -> None:
        if self._texts:
            text = "".join(self._texts)
            last = self.pieces[-1] if self.pieces else None
            if last is not None and last.content.get("name") == self._name:
                text = last.content["text"] + text
                self.pieces.pop()
            content = {"name": self._name, "text": text}
            self.pieces.append(wire.RankOutput(self.rank, 0, "stream", content))
            self._texts = []

    def outputs(self) -> list[wire.RankOutput]:
        """The pieces, with all text joined and counted drops said. Any thread."""
        with self._lock:
            self._join()
            pieces = list(self.pieces)
        if not self.dropped_chars:
            return pieces
        note = {"name": "stderr", "text": f"\n[{self.dropped_chars} more characters not kept]\n"}
        return [*pieces, wire.RankOutput(self.rank, 0, "stream", note)]

    @property
    def chars(self) -> int:
        """About how much memory it takes."""
        bundles = [piece.content.get("data") or {} for piece in list(self.pieces)]
        return self._chars + sum(len(v) for b in bundles for v in b.values() if isinstance(v, str))

    def text(self, name: str | None = None) -> str:
        """The text printed to ``stdout`` or ``stderr`` (None: both)."""
        return "".join(
            o.content["text"]
            for o in self.outputs()
            if o.kind == "stream" and name in (None, o.content["name"])
        )


@dataclass
class CellRecord:
    """One cell as all its ranks ran it.

    Attributes:
      seq: the cell's number in the cluster; all ranks run cells in this order.
      execution_count: the cell's number in the notebook, as in ``[7]``.
      ranks: the ranks that were told to run it.
      cell_id: Jupyter's, where there is one.
      sent_ns: when it was sent, by its notebook's clock.
      shown: the ranks whose output is shown in its place; none: the first one's.
      error: what its notebook has raised at its end.
      is_over: nothing more comes of it, and ``error`` is set where it has failed.
    """

    seq: int
    execution_count: int
    source: str
    ranks: Sequence[int]
    records: dict[int, RankRecord] = field(default_factory=dict)
    seconds: float = 0.0
    cell_id: str = ""
    sent_ns: int = 0
    shown: Sequence[int] = ()
    error: wire.ErrorInfo | None = None
    is_over: bool = False

    def __post_init__(self) -> None:
        for rank in self.ranks:
            self.records[rank] = RankRecord(rank)

    def add_output(self, output: wire.RankOutput) -> None:
        self.records[output.rank].add(output)

    def end(self, error: BaseException | None) -> None:
        """Keep how it ends for its notebook: with what is raised there, or well."""
        if error is not None:
            render = getattr(error, "_render_traceback_", list)
            self.error = wire.ErrorInfo(type(error).__name__, str(error), render())
        self.is_over = True

    def add_reply(self, reply: wire.CellReply) -> None:
        self.records[reply.rank].reply = reply

    def stdout(self, rank: int | None = None) -> str:
        """What a rank printed (None: the first rank that ran the cell)."""
        return self.records[self.ranks[0] if rank is None else rank].text("stdout")

    def result(self, rank: int | None = None) -> dict[str, Any] | None:
        """The MIME bundle of the cell's last expression on a rank, if it had one."""
        record = self.records[self.ranks[0] if rank is None else rank]
        found = [o.content["data"] for o in record.outputs() if o.kind == "execute_result"]
        return found[-1] if found else None

    @property
    def replies(self) -> dict[int, wire.CellReply]:
        return {r: rec.reply for r, rec in self.records.items() if rec.reply is not None}

    @property
    def errors(self) -> dict[int, wire.ErrorInfo]:
        return {r: reply.error for r, reply in self.replies.items() if reply.error is not None}

    @property
    def ok(self) -> bool:
        replies = self.replies
        return len(replies) == len(self.ranks) and all(r.status == "ok" for r in replies.values())

    def __repr__(self) -> str:
        state = "ok" if self.ok else "failed"
        return (
            f"<cell [{self.execution_count}] on ranks {format_ranks(self.ranks)}: {state}, "
            f"{self.seconds:.3g} s>"
        )


@dataclass(frozen=True)
class Group:
    """Ranks with the same output."""

    ranks: tuple[int, ...]
    outputs: tuple[wire.RankOutput, ...] = ()
    error: wire.ErrorInfo | None = None


def group_outputs(records: Mapping[int, RankRecord]) -> list[Group]:
    """Ranks with equal outputs together, in the order of each group's first rank."""
    outputs = {rank: tuple(record.outputs()) for rank, record in records.items()}
    groups = by_value({rank: _likeness(pieces) for rank, pieces in outputs.items()})
    return [Group(tuple(ranks), outputs[ranks[0]]) for ranks in groups.values()]


def _likeness(pieces: Iterable[wire.RankOutput]) -> Hashable:
    """Equal for outputs that are shown once."""
    ids: dict[Any, int] = {}  # every rank makes up its own: only which are equal counts
    return tuple(
        (
            p.kind,
            ids.setdefault(_display_id(p), len(ids)),
            _freeze({k: v for k, v in p.content.items() if k != "transient"}),
        )
        for p in pieces
    )


def group_errors(errors: Mapping[int, wire.ErrorInfo]) -> list[Group]:
    """Ranks with equal errors together: same class, message and cell line."""
    groups = by_value(
        {r: (one.ename, _without_rank(one.evalue), one.lineno) for r, one in errors.items()}
    )
    return [Group(tuple(ranks), error=errors[ranks[0]]) for ranks in groups.values()]


def _display_id(output: wire.RankOutput) -> Any:
    return (output.content.get("transient") or {}).get("display_id")


_UP = re.compile(r"\x1b\[\d*A")
_STEP = re.compile(r"(\n|\r|\x08+|\x1b\[[0-9;?]*[A-Za-z])")


def as_seen(text: str) -> str:
    """Text whose lines were written over, as progress bars do it: what is to be seen in the end."""
    if "\r" not in text and "\b" not in text:
        return text
    text = text.replace("\r\n", "\n")
    if _UP.search(text):  # bars inside of bars
        return "\n".join(row.rstrip(" ") for row in _screen(text).split("\n"))
    lines = text.split("\n")
    return "\n".join(_screen(line) if "\r" in line or "\b" in line else line for line in lines)


def _screen(text: str) -> str:
    """What a terminal shows: what goes back or up, and what wipes a line's end, is heeded."""
    rows: list[list[str]] = [[]]  # of characters, each with the colours before it
    x, y, colours = 0, 0, ""
    for step in _STEP.split(text):
        row = rows[y]
        if step == "\n":
            x, y = 0, y + 1
            if y == len(rows):
                rows.append([])
        elif step == "\r":
            x = 0
        elif step[:1] == "\b":
            x = max(0, x - len(step))
        elif step in ("\x1b[K", "\x1b[0K"):
            del row[x:]
        elif step == "\x1b[2K":
            row.clear()
        elif _UP.fullmatch(step):
            y = max(0, y - int(step[2:-1] or 1))
        elif step[:2] == "\x1b[":
            colours += step if step[-1] == "m" else ""
        elif step:
            row.extend(" " * (x - len(row)))
            row[x : x + len(step)] = [colours + step[0], *step[1:]]
            x, colours = x + len(step), ""
    return "\n".join(map("".join, rows)) + colours


def _without_rank(text: str) -> str:
    """An error's text without what always differs between ranks: addresses of objects."""
    return re.sub(r"0x[0-9a-f]{6,}", "0x…", ANSI.sub("", text))


def _freeze(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple(sorted((k, _freeze(v)) for k, v in value.items()))
    if isinstance(value, list):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, str):
        return _without_rank(value)
    return value if isinstance(value, Hashable) else repr(value)


def traceback_lines(record: CellRecord, hosts: Mapping[int, str] | None = None) -> list[str]:
    """The tracebacks of a cell, each under the ranks that raised it.

    Of errors that differ in numbers only, the first rank's is whole; the others' are a line each.
    Those of ranks that were only stopped are left out.

    Args:
      hosts: the ranks' hosts, where there are several.
    """
    errors = {r: e for r, e in record.errors.items() if record.replies[r].status == "error"}
    alike = by_value({r: _kind(e) for r, e in errors.items()})
    lines: list[str] = []
    for ranks in alike.values():
        everyone = len(ranks) == len(record.ranks)
        first, *others = group_errors({r: errors[r] for r in ranks})
        note = f" (this is rank {ranks[0]}'s)" if others else ""
        if everyone and len(ranks) > 1:
            lines.append(f"\x1b[1mOn all {len(ranks)} ranks{note}:\x1b[0m")
        elif len(record.ranks) > 1:
            lines.append(f"\x1b[1mOn {name_ranks(ranks, hosts)}{note}:\x1b[0m")
        assert first.error is not None
        lines += first.error.traceback or [_message(first.error)]
        for other in others:
            assert other.error is not None
            message = wire.shorten(" ".join(_message(other.error).split()), MESSAGE_CHARS)
            lines.append(f"On {name_ranks(other.ranks, hosts)}: {message}")
    return lines


def _kind(error: wire.ErrorInfo) -> Hashable:
    """Equal for errors whose messages differ only in numbers, such as an array's values."""
    message = re.sub(r"\s*[-+]?\.?\d[\d.]*(e[-+]?\d+)?", " 0", _without_rank(error.evalue))
    return error.ename, " ".join(message.split()), error.lineno


def _message(error: wire.ErrorInfo) -> str:
    return f"{error.ename}: {error.evalue}"
