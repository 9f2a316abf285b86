"""Folds what the ranks say during a cell into one view of it: rank 0 shown, the rest kept.

Pure: outputs and replies go in, in the order of their arrival; groups of equal ranks come out.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from jaxcluster import wire
from jaxcluster.ranks import by_value, format_ranks, name_ranks

MESSAGE_CHARS = 200  # shown of a message, if its error is like one that is shown whole
KEPT_CHARS = 10_000_000  # of one rank's printed text in one cell; the rest is counted only
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Moves of a terminal's cursor: to another row, to the start of one, and others.
_MOVES = re.compile(r"(\n|\r|\x08+|\x1b\[[0-9;?]*[A-Za-ln-z])")
_UP = re.compile(r"\x1b\[\d*A")

RUNNING = "running"
DIED = "died"  # the rank's process ended in the middle of it
UNKNOWN = "unknown"  # its end could not be kept
# If ranks have several states, the first in this order counts.
STATES = (RUNNING, DIED, "error", "refused", "interrupted", UNKNOWN, "ok")

Said = tuple[str, dict[str, Any]]  # a piece of output, as ``RankOutput`` has it: kind and content

CLEARS: Said = ("clear_output", {"wait": True})  # all before it, at the next output


def join(said: Iterable[Said]) -> Iterator[Said]:
    """Outputs, with what was printed to one stream in a row as one."""
    for (kind, name), row in itertools.groupby(said, lambda one: (one[0], one[1].get("name"))):
        if kind == "stream":
            yield kind, {"name": name, "text": "".join(content["text"] for _, content in row)}
        else:
            yield from row


def fold(shown: Iterable[Said], new: Iterable[Said]) -> list[Said]:
    """Outputs, with later ones added to them, as a notebook shows them."""
    made = list(shown)
    for kind, content in join(new):
        if made[-1:] == [CLEARS] and kind not in ("clear_output", "update_display_data"):
            made = []
        if kind == "clear_output":
            made = [*made, CLEARS] if content.get("wait") else []
        elif kind == "update_display_data":
            id, now = _display_id(content), {k: content[k] for k in ("data", "metadata")}
            is_it = [id is not None and id == _display_id(c) for _, c in made]
            made = [(k, c | now if it else c) for (k, c), it in zip(made, is_it, strict=True)]
        else:
            row = [made.pop()] if kind == "stream" and made[-1:] and made[-1][0] == kind else []
            made += join([*row, (kind, content)])
    return made


@dataclass
class RankRecord:
    """All output of one rank in one cell, as it is shown."""

    rank: int
    reply: wire.CellReply | None = None
    died: str = ""
    _pieces: list[Said] = field(default_factory=list)
    _new: list[Said] = field(default_factory=list)
    _chars: int = 0
    _dropped_chars: int = 0
    # The panel reads the output of a cell so far on another thread.
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def add(self, output: wire.RankOutput) -> None:
        with self._lock:
            content = output.content
            if output.kind != "stream":
                self._new.append((output.kind, content))
                self._fold()
                return
            kept = content["text"][: KEPT_CHARS - self._chars]
            self._chars += len(kept)
            self._dropped_chars += len(content["text"]) - len(kept)
            if kept:  # is joined to what is before it when somebody looks
                self._new.append(("stream", content | {"text": kept}))

    def _fold(self) -> None:
        self._pieces, self._new = fold(self._pieces, self._new), []
        if self._pieces[-1:] in ([], [CLEARS]):
            self._chars = self._dropped_chars = 0

    def outputs(self) -> list[wire.RankOutput]:
        """The outputs that are shown, with a note of how many were dropped. Any thread."""
        with self._lock:
            self._fold()
            pieces = [piece for piece in self._pieces if piece != CLEARS]
            if self._dropped_chars:
                told = f"\n[{self._dropped_chars} more characters not kept]\n"
                pieces.append(("stream", {"name": "stderr", "text": told}))
        return [wire.RankOutput(self.rank, 0, kind, content) for kind, content in pieces]

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
      ranks: the ranks that run it.
      cell_id: Jupyter's, where there is one.
      sent_ns: when it was sent, by its notebook's clock.
      shown: the ranks whose output the notebook shows; empty: the first rank's.
      error: the error that the notebook raised at its end.
      is_over: whether it has ended; if it failed, ``error`` is set.
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
            self.records.setdefault(rank, RankRecord(rank))

    @classmethod
    def of(cls, cell: wire.CellRequest, **more: Any) -> Self:
        """A cell before it runs."""
        told = cell.execution_count, cell.source, cell.ranks
        return cls(cell.seq, *told, cell_id=cell.cell_id, sent_ns=cell.sent_ns, **more)

    def add_output(self, output: wire.RankOutput) -> None:
        self.records[output.rank].add(output)

    def end(self, error: BaseException | None) -> None:
        """Keep the error that the cell raises in its notebook, if any."""
        if error is not None:
            render = getattr(error, "_render_traceback_", list)
            self.error = wire.ErrorInfo(type(error).__name__, str(error), render())
        self.is_over = True

    def add_reply(self, reply: wire.CellReply) -> None:
        self.records[reply.rank].reply = reply

    def stdout(self, rank: int | None = None) -> str:
        """The text that a rank printed; None stands for the first rank."""
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


@dataclass(repr=False)
class PastCell(CellRecord):
    """A cell of the history, as its ranks have recorded it.

    Attributes:
      who: the notebook or process that has sent it.
      number: in the cluster, counted over all notebooks, and over restarts.
      count: how many cells one of its ranks had begun, this one included.
      starts: for each rank that has begun it, where in the rank's output it begins.
      ends: for each rank on which no more may come, where it ends.
    """

    who: str = ""
    number: int = 0
    count: int = 0
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def status(self, rank: int) -> str:
        """``running``, ``died``, or as a ``CellReply`` has it."""
        record = self.records[rank]
        return DIED if record.died else record.reply.status if record.reply else RUNNING

    @property
    def state(self) -> str:
        """Its state, or how it has ended, on all its ranks together."""
        found = {self.status(rank) for rank in self.ranks}
        return next(state for state in (*STATES, *found) if state in found)

    @property
    def first_line(self) -> str:
        """The first line of its source that does something."""
        lines = [line for line in map(str.strip, self.source.splitlines()) if line]
        return next((line for line in lines if line[0] not in "#%"), next(iter(lines), ""))


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
        (p.kind, ids.setdefault(_display_id(p.content), len(ids)), p.content | {"transient": None})
        for p in pieces
    ]
    return without_rank(json.dumps(told, sort_keys=True, default=repr))


def group_errors(errors: Mapping[int, wire.ErrorInfo]) -> list[list[int]]:
    """Ranks together whose errors differ only in numbers, such as an array's values."""

    def kind(error: wire.ErrorInfo) -> Hashable:
        message = re.sub(r"\s*[-+]?\.?\d[\d.]*(e[-+]?\d+)?", " 0", without_rank(error.evalue))
        return error.ename, " ".join(message.split()), error.lineno

    return list(by_value({rank: kind(error) for rank, error in errors.items()}).values())


def _display_id(content: Mapping[str, Any]) -> Any:
    """None for all but a display that may be updated."""
    return (content.get("transient") or {}).get("display_id")


def as_seen(text: str) -> str:
    """Text as a terminal shows it in the end: progress bars write over their own lines."""
    if "\r" not in text and "\b" not in text:
        return text
    rows, y = [""], 0
    colours: str | None = None  # since the begin of a row, whose text the next takes the place of
    for step in _MOVES.split(text.replace("\r\n", "\n")):
        if step[:1] == "\b":
            rows[y] = rows[y][: -len(step)]
        elif step in ("\r", "\n") or _UP.fullmatch(step):
            if step != "\r":
                y = y + 1 if step == "\n" else max(0, y - int(step[2:-1] or 1))
            rows += [""] * (y == len(rows))
            colours = colours or ""
        elif _MOVES.fullmatch(step):
            is_wiped = step == "\x1b[2K" or (colours is not None and step in ("\x1b[K", "\x1b[0K"))
            rows[y] = "" if is_wiped else rows[y]
        elif colours is not None and not ANSI.sub("", step):
            colours += step
        else:
            rows[y], colours = (rows[y] if colours is None else colours) + step, None
    return "\n".join(row.rstrip(" ") for row in rows) + (colours or "")


def without_rank(text: str) -> str:
    """An error's text without what always differs between ranks: addresses of objects."""
    return re.sub(r"0x[0-9a-f]{6,}", "0x…", ANSI.sub("", text))


def traceback_lines(record: CellRecord, hosts: Mapping[int, str] | None = None) -> list[str]:
    """The tracebacks of a cell, each under the ranks that raised it.

    If errors differ only in numbers, the first is shown whole, and each other one as a line.
    Those of ranks that were only stopped are left out.

    Args:
      hosts: the ranks' hosts, where there are several.
    """
    errors = {r: e for r, e in record.errors.items() if record.replies[r].status == "error"}
    lines: list[str] = []
    for ranks in group_errors(errors):
        everyone = len(ranks) == len(record.ranks)
        messages = by_value(
            {r: without_rank(f"{errors[r].ename}: {errors[r].evalue}") for r in ranks}
        )
        (message, _), *others = messages.items()
        note = f" (this is rank {ranks[0]}'s)" if others else ""
        if everyone and len(ranks) > 1:
            lines.append(f"\x1b[1mOn all {len(ranks)} ranks{note}:\x1b[0m")
        elif len(record.ranks) > 1:
            lines.append(f"\x1b[1mOn {name_ranks(ranks, hosts)}{note}:\x1b[0m")
        lines += errors[ranks[0]].traceback or [message]
        for message, other in others:
            told = wire.shorten(" ".join(message.split()), MESSAGE_CHARS)
            lines.append(f"On {name_ranks(other, hosts)}: {told}")
    return lines
