"""What an assistant is told of a cluster: the texts that the user sees, of every rank, bounded."""

from __future__ import annotations

import socket
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from jaxcluster import cluster, wire
from jaxcluster.cluster import Cluster, array_queries
from jaxcluster.cluster import history as cells
from jaxcluster.errors import UsageError
from jaxcluster.model import deaths
from jaxcluster.model.availability import advice
from jaxcluster.model.history import Run
from jaxcluster.model.outputs import ANSI, RankRecord, group_outputs
from jaxcluster.ranks import begin_ranks, by_value, name_ranks, parse_ranks
from jaxcluster.records import registry
from jaxcluster.records.lastreport import LastReport
from jaxcluster.text import format_nbytes, format_seconds, format_table
from jaxcluster.views import report as reports
from jaxcluster.views import text

MOST_CHARS = 20_000  # of one answer; its end is kept
MOST_IMAGES = 4


def clip(shown: str, most: int = MOST_CHARS) -> str:
    """A text without colours and no longer than that: of a longer one the end."""
    shown = ANSI.sub("", shown)
    if len(shown) <= most:
        return shown
    return f"[{len(shown) - most} characters before this are left out]\n{shown[-most:]}"


# --------------------------------------------------------------------------- clusters


def clusters() -> str:
    """All clusters of this user that can be attached to."""
    records, unreachable = cluster.listed()
    shown = text.clusters(records, [], time.time_ns(), unreachable, socket.gethostname())
    if records:
        return textwrap.dedent(shown)
    return f"{shown}\nSearched {registry.runtime_root()}, where this user's clusters are recorded."


def status(running: Cluster) -> str:
    """What each rank does, who waits for whom, and who comes last."""
    lines = [running.summary(), text.status(running.status(), running.dead)]
    if (late := running.late()) is not None:
        lines.append(late.told(running.world.hosts))
    return "\n".join([*lines, _waits(running)])


def _waits(running: Cluster) -> str:
    """Who waits for whom now, and at which line."""
    looked = running.look()
    if looked is None:
        return "No rank knows what the others wait for."
    told = []
    for wait in looked.waits:
        who = f"Rank {wait.rank}" + (f" (thread {wait.lane})" if wait.lane else "")
        since = format_seconds(looked.now - wait.since)
        place = f"{text.place(wait.place)}, {wait.name}"
        told.append(f"{who} has waited {since} for {name_ranks(wait.missing)} ({place}).")
    return "\n".join(told) or "No rank waits for another."


# --------------------------------------------------------------------------- what went wrong


def report(running: Cluster, cell: int | None) -> list[str | dict[str, Any]]:
    """What the ranks do now, and what went wrong last or in a cell.

    The past is there as text, and as what a program can read.
    """
    found = running.past_reports.find(cell)
    told = [f"NOW\n{_now(running)}"]
    if found is None:
        told.append(f"BEFORE\n{reports.none(running.name, cell, running.past_reports.all())}")
        return ["\n\n".join(told)]
    told.append(_tell_last(found, running.name, time.time_ns()))
    document = {
        name: clip(value, MOST_CHARS // 8) if isinstance(value, str) else value
        for name, value in asdict(reports.document(found, running.name)).items()
    }
    return [clip("\n\n".join(told)), document]


def _now(running: Cluster) -> str:
    world = running.world
    if running.dead:
        lines = deaths.tell({rank: death.why for rank, death in running.dead.items()})
        if running.condition.ended_by_others:
            return "\n".join([*lines, advice(running.condition) or ""])
        rank = min(running.dead)
        return "\n".join([*lines, f"The end of rank {rank}'s log:", world.log_excerpt(rank)])
    silent = [state.rank for state in running.status() if state.state == "silent"]
    lines = [f"{begin_ranks(silent)} gave no answer."] if silent else []
    return "\n".join([*lines, _waits(running), text.stacks(running.stacks())])


def _tell_last(last: LastReport, name: str, now_ns: int) -> str:
    ago_s = max(0.0, (now_ns - last.at_ns) / 1e9)
    ago = f"{ago_s:.0f} s" if ago_s < 120 else f"{ago_s / 60:.0f} min"
    told = reports.text(reports.document(last, name))
    return f"BEFORE ({last.kind} in cell [{last.cell}], {ago} ago)\n{told}"


def _numbered(source: str) -> str:
    return "\n".join(f"{n:4}  {line}" for n, line in enumerate(source.splitlines(), 1))


def logs(running: Cluster, ranks: str, lines: int, search: str) -> str:
    """The ends of ranks' logs, or their lines that hold a text."""
    parts = []
    for rank in chosen(running, ranks):
        found = running.logs(rank).splitlines()
        if search:
            found = [line for line in found if search.lower() in line.lower()]
        shown = "\n".join(found[-lines:])
        parts.append(f"── rank {rank} ──\n{shown or '(nothing)'}")
    return "\n".join(parts)


def chosen(running: Cluster, ranks: str) -> list[int]:
    """The ranks that ``0,2-3`` names; all where it is empty.

    Raises:
      UsageError: it is not a list of ranks of this cluster.
    """
    if not ranks.strip():
        return list(range(running.num_processes))
    try:
        return parse_ranks(ranks, running.num_processes)
    except ValueError as error:
        raise UsageError(f"{error}.", "For example: 0,2-3") from None


# --------------------------------------------------------------------------- outputs


def outputs(
    running: Cluster, ranks: str, cell: int | None, number: int | None = None
) -> tuple[str, list[tuple[str, str]]]:
    """(the output of the ranks in a cell, its images as (MIME type, base64)).

    Args:
      cell: the last one that had this number in its notebook.
      number: the one with this number in the history.

    Raises:
      UsageError: no rank has kept such a cell.
    """
    wanted = chosen(running, ranks)
    one = cells.find(running.world, number) if number is not None else None
    if one is None:
        found = [c for c in running.history().cells if cell in (None, c.cell)]
        one = next((c for c in reversed(found) if set(c.runs) & set(wanted)), None)
    if one is None:
        which = "any cell yet" if cell is None else f"a cell [{cell}]"
        raise UsageError(
            f"{begin_ranks(wanted)} {'has' if len(wanted) == 1 else 'have'} not run {which}.",
            "The tool `history` lists the cells that are kept.",
        )
    own = {rank: run for rank, run in one.runs.items() if rank in wanted}
    others = [rank for rank in wanted if rank not in own]
    lines = [f"Cell [{one.cell}]:", _numbered(one.source), how_ended(own)]
    if others:
        lines.append(f"{begin_ranks(others)} did not run this cell.")
    records = cells.record_of(running.world, one, list(own)).records
    failed = {r: run for r, run in own.items() if run.status == "error"}
    lines += told(records, {r: run.error for r, run in failed.items() if run.error is not None})
    return "\n".join(lines), images(records)


def how_ended(runs: Mapping[int, Run]) -> str:
    """``rank 1: error after 0.2 s; ranks 0, 2: ok ...``."""
    parts = []
    for state, members in by_value({rank: one.status for rank, one in runs.items()}).items():
        slowest = max(runs[rank].seconds for rank in members)
        parts.append(f"{name_ranks(members)}: {state}" + (f" ({slowest:.2f} s)" if slowest else ""))
    return "; ".join(parts)


def told(records: Mapping[int, RankRecord], errors: Mapping[int, wire.ErrorInfo]) -> Sequence[str]:
    """The outputs and errors of all ranks, equal ones once."""
    lines = [text.outputs(records)]
    told = {r: "\n".join(e.traceback) or f"{e.ename}: {e.evalue}" for r, e in errors.items()}
    for shown, ranks in by_value(told).items():
        lines.append(f"── error on {name_ranks(ranks)} ──\n{shown}")
    return lines


def images(records: Mapping[int, RankRecord]) -> list[tuple[str, str]]:
    """The figures of the first ranks that have made any: (MIME type, base64)."""
    found: list[tuple[str, str]] = []
    for group in group_outputs(records):
        for output in group.outputs:
            data = output.content.get("data") or {}
            mime = next((m for m in ("image/png", "image/jpeg") if m in data), None)
            if mime is not None and (mime, data[mime]) not in found:
                found.append((mime, str(data[mime])))
    return found[:MOST_IMAGES]


# --------------------------------------------------------------------------- arrays


def variables(running: Cluster) -> str:
    """The ranks' arrays and trees of arrays."""
    found = array_queries.variables(running.world)
    if not found:
        return "No variable of the ranks is an array, or a tree of arrays."
    rows = [["name", "type", "shape", "dtype", "sharding", "bytes", "on a device"]]
    for one in found:
        shape = "" if one.shape is None else str(tuple(one.shape))
        nbytes, most = format_nbytes(one.nbytes), format_nbytes(one.nbytes_per_device)
        rows.append([one.name, one.type, shape, one.dtype, one.sharding, nbytes, most])
    return "\n".join(format_table(rows))
