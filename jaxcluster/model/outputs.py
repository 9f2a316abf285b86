"""Folds what the ranks say during a cell into one view of it: rank 0 shown, the rest kept.

Pure: outputs and replies go in, in the order of their arrival; groups of equal ranks come out.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from jaxcluster import wire
from jaxcluster.ranks import by_value, format_ranks, name_ranks

MESSAGE_CHARS = 200  # of the message of an error like the one that is shown whole
KEPT_CHARS = 10_000_000  # of one rank's printed text in one cell; the rest is counted only
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Text:
    """What a rank has printed to one stream, until it prints to the other one or shows something.

    Attributes:
      parts: as they came.
    """

    name: str
    parts: list[str]


@dataclass
class RankRecord:
    """All output of one rank in one cell, in order; neighbouring text is joined."""

    rank: int
    reply: wire.CellReply | None = None
    died: str = ""
    _pieces: list[wire.RankOutput | Text] = field(default_factory=list)
    _chars: int = 0
    _dropped_chars: int = 0
    _clear_first: bool = False  # clear_output(wait=True): at the next output
    # The panel reads the output of a cell so far on a thread of its own.
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def add(self, output: wire.RankOutput) -> None:
        with self._lock:
            if output.kind == "clear_output":
                self._clear_first = bool(output.content.get("wait"))
                if not self._clear_first:
                    self._clear()
            elif output.kind != "update_display_data" or not self._update(output):
                if self._clear_first:
                    self._clear()
                self._append(output)

    def _clear(self) -> None:
        self._pieces, self._chars, self._dropped_chars, self._clear_first = [], 0, 0, False

    def _append(self, output: wire.RankOutput) -> None:
        if output.kind != "stream":
            self._pieces.append(output)
            return
        name, text = output.content["name"], output.content["text"]
        kept = text[: KEPT_CHARS - self._chars]
        self._chars += len(kept)
        self._dropped_chars += len(text) - len(kept)
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, Text) and last.name == name:
            last.parts.append(kept)
        elif kept:
            self._pieces.append(Text(name, [kept]))

    def _update(self, output: wire.RankOutput) -> bool:
        """Change the display that it names, if that was made in this cell."""
        id = _display_id(output)
        found = [
            n for n, one in enumerate(self._pieces) if id is not None and _display_id(one) == id
        ]
        for number in found:
            new = {k: output.content[k] for k in ("data", "metadata")}
            piece = cast(wire.RankOutput, self._pieces[number])
            self._pieces[number] = replace(piece, content=piece.content | new)
        return bool(found)

    def outputs(self) -> list[wire.RankOutput]:
        """The pieces, with all text joined and counted drops said. Any thread."""
        with self._lock:
            for piece in self._pieces:
                if isinstance(piece, Text):
                    piece.parts = ["".join(piece.parts)]
            pieces = [
                self._text(piece.name, *piece.parts) if isinstance(piece, Text) else piece
                for piece in self._pieces
            ]
        if self._dropped_chars:
            told = f"\n[{self._dropped_chars} more characters not kept]\n"
            pieces.append(self._text("stderr", told))
        return pieces

    def _text(self, name: str, text: str) -> wire.RankOutput:
        return wire.RankOutput(self.rank, 0, "stream", {"name": name, "text": text})

    @property
    def chars(self) -> int:
        """About how much memory it takes."""
        shown = [piece.content.get("data") or {} for piece in self.outputs()]
        return self._chars + sum(len(v) for b in shown for v in b.values() if isinstance(v, str))

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


def group_outputs(
    records: Mapping[int, RankRecord],
) -> list[tuple[list[int], list[wire.RankOutput]]]:
    """Ranks with equal outputs, and these, in the order of each group's first rank."""
    outputs = {rank: record.outputs() for rank, record in records.items()}
    groups = by_value({rank: _likeness(pieces) for rank, pieces in outputs.items()})
    return [(ranks, outputs[ranks[0]]) for ranks in groups.values()]


def _likeness(pieces: Iterable[wire.RankOutput]) -> str:
    """Equal for outputs that are shown once."""
    ids: dict[Any, int] = {}  # every rank makes up its own: only which are equal counts
    told = [
        (p.kind, ids.setdefault(_display_id(p), len(ids)), p.content | {"transient": None})
        for p in pieces
    ]
    return _without_rank(json.dumps(told, sort_keys=True, default=repr))


def group_errors(errors: Mapping[int, wire.ErrorInfo]) -> list[list[int]]:
    """Ranks with equal errors together: same class, message and cell line."""
    told = {r: (one.ename, _without_rank(one.evalue), one.lineno) for r, one in errors.items()}
    return list(by_value(told).values())


def _display_id(output: wire.RankOutput | Text) -> Any:
    if isinstance(output, Text):
        return None
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
        shown = errors[first[0]]
        lines += shown.traceback or [_message(shown)]
        for other in others:
            message = wire.shorten(" ".join(_message(errors[other[0]]).split()), MESSAGE_CHARS)
            lines.append(f"On {name_ranks(other, hosts)}: {message}")
    return lines


def _kind(error: wire.ErrorInfo) -> Hashable:
    """Equal for errors whose messages differ only in numbers, such as an array's values."""
    message = re.sub(r"\s*[-+]?\.?\d[\d.]*(e[-+]?\d+)?", " 0", _without_rank(error.evalue))
    return error.ename, " ".join(message.split()), error.lineno


def _message(error: wire.ErrorInfo) -> str:
    return f"{error.ename}: {error.evalue}"
