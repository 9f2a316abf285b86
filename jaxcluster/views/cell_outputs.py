"""The output of ranks in a cell, as a notebook keeps it: nbformat's outputs, in groups, as HTML."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape

from msgspec import to_builtins

from jaxcluster import wire
from jaxcluster.model.outputs import ANSI, CellRecord, RankRecord, as_seen, group_outputs
from jaxcluster.ranks import name_ranks
from jaxcluster.views.displays import Bundle
from jaxcluster.views.messages import OUTPUTS_MIME, Output, OutputGroup, RanksOutputs
from jaxcluster.wire.forks import MEANT

MOST_CHARS = 1_000_000  # shown of a rank's text on request
MOST_SHOWN = 200_000  # shown of a group's text below a cell of several ranks
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/svg+xml")


def notebook_outputs(record: RankRecord, execution_count: int) -> list[Output]:
    """The output of one rank in a cell, and how it failed, in the form of nbformat 4."""
    found = _pieces(record.outputs(), execution_count, MOST_CHARS)
    if record.died:
        told = "" if record.died in MEANT else f"rank {record.rank} died: "
        found.append(_error("RankDied", told + record.died, []))
    elif record.reply is not None and (error := record.reply.error) is not None:
        found.append(_error(error.ename, error.evalue, error.traceback))
    return found


def in_notebook(record: CellRecord) -> list[Output]:
    """The outputs below a cell that the notebook has followed from its beginning."""
    found: list[Output] = []
    if not record.shown:
        pieces = record.records[record.ranks[0]].outputs()
        found += _pieces(pieces, record.execution_count, MOST_CHARS)
    elif shown := document(record, record.shown):
        found.append({"output_type": "display_data", "data": bundle(shown), "metadata": {}})
    if record.error is not None:
        found.append(_error(record.error.ename, record.error.evalue, record.error.traceback))
    return found


def _pieces(pieces: Sequence[wire.RankOutput], execution_count: int, most: int) -> list[Output]:
    found: list[Output] = []
    left = most
    for piece in pieces:
        content = piece.content
        if piece.kind == "stream":
            shown, left = _cut(as_seen(content["text"]), left)
            found.append({"output_type": "stream", "name": content["name"], "text": shown})
        elif piece.kind in ("display_data", "execute_result"):
            is_result = piece.kind == "execute_result"
            made: Output = {"output_type": piece.kind, "data": content["data"]}
            made["metadata"] = content.get("metadata") or {}
            found.append(made | ({"execution_count": execution_count} if is_result else {}))
    return found


def _cut(text: str, most: int) -> tuple[str, int]:
    """(the text without its middle where it is too long, how much more may be shown)."""
    if len(text) <= most:
        return text, most - len(text)
    head, tail = text[: most - most // 2], text[len(text) - most // 2 :]
    return f"{head}\n[{len(text) - most} more characters]\n{tail}", 0


def _error(ename: str, evalue: str, traceback: list[str]) -> Output:
    lines = traceback or [f"{ename}: {evalue}"]
    return {"output_type": "error", "ename": ename, "evalue": evalue, "traceback": lines}


# --------------------------------------------------------------------------- several ranks


def document(record: CellRecord, ranks: Sequence[int]) -> RanksOutputs | None:
    """Groups of ranks with the same output, in the order of their first ranks; None for nothing.

    The Lab extension draws it, and finds there the output of a rank when the cluster is long gone.
    An array that spans processes is left out: the cell shows it once for all ranks.
    """
    groups = []
    for own, pieces in group_outputs({rank: record.records[rank] for rank in ranks}):
        shown = [piece for piece in pieces if "array" not in piece.content]
        groups.append(OutputGroup(own, _pieces(shown, record.execution_count, MOST_SHOWN)))
    if not any(group.outputs for group in groups):
        return None
    replies = {rank: record.records[rank].reply for rank in ranks}
    failed = [rank for rank, reply in replies.items() if reply and reply.status == "error"]
    return RanksOutputs(cell=record.execution_count, groups=groups, failed=failed)


def bundle(shown: RanksOutputs) -> Bundle:
    """The document for the Lab extension, as HTML for all others, and as text."""
    groups = shown.groups
    return {OUTPUTS_MIME: to_builtins(shown), "text/html": html(groups), "text/plain": text(groups)}


def of_records(records: Mapping[int, RankRecord]) -> str:
    """Every rank's output of a cell as text, equal ones once."""
    groups = group_outputs(records)
    return text([OutputGroup(own, _pieces(pieces, 0, MOST_CHARS)) for own, pieces in groups])


def text(groups: Sequence[OutputGroup]) -> str:
    """Each group's text under its ranks."""
    parts = []
    for group in groups:
        said = "".join(map(plain, group.outputs)).rstrip("\n") or "(no output)"
        parts.append(f"── {name_ranks(group.ranks)} ──\n{said}")
    return "\n".join(parts)


def plain(output: Output) -> str:
    """One output as text."""
    if output["output_type"] == "stream":
        return str(output["text"])
    said = output["data"].get("text/plain", "")
    return f"{said}\n" if said else ""


def html(groups: Sequence[OutputGroup]) -> str:
    """Groups that fold, for frontends without the extension, and for nbconvert."""
    parts = []
    for group in groups:
        name = escape(name_ranks(group.ranks))
        inner = "".join(map(_html, group.outputs)) or "<em>(no output)</em>"
        parts.append(f"<details open><summary><b>{name}</b></summary>{inner}</details>")
    return "\n".join(parts)


def _html(output: Output) -> str:
    if output["output_type"] == "stream":
        return f"<pre>{escape(ANSI.sub('', output['text']))}</pre>"
    data = output["data"]
    for kind in IMAGES:
        if kind in data:
            return _image(kind, data[kind])
    if "text/html" in data:
        return f"<div>{data['text/html']}</div>"
    return f"<pre>{escape(data.get('text/plain', ''))}</pre>"


def _image(kind: str, data: str) -> str:
    if kind == "image/svg+xml":
        data = base64.b64encode(data.encode()).decode()
    return f'<img src="data:{kind};base64,{re.sub(r"[^A-Za-z0-9+/=]", "", data)}" alt="figure"/>'
