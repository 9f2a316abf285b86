"""The models as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcluster import wire
from jaxcluster.outputs import CellRecord, group_outputs
from jaxcluster.ranks import format_ranks, name_ranks
from jaxcluster.registry import ClusterRecord


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest entry."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [header, *rows]
    ]
    return "\n".join(lines)


def status(states: Sequence[wire.RankState], dead: dict[int, dict[str, Any]]) -> str:
    """One row a rank: where it runs and what it is doing."""
    rows = []
    for s in states:
        doing = s.state
        if s.state == "dead" and s.rank in dead:
            doing = f"dead: {dead[s.rank]['why']}"
        elif s.queued and s.state == "running":
            doing = f"running, {s.queued} waiting"
        cell = f"[{s.cell}]" + (f" line {s.line}" if s.line else "") if s.cell is not None else ""
        rows.append(
            [
                str(s.rank),
                str(s.pid),
                s.hostname,
                " ".join(s.devices),
                doing,
                cell,
                f"{s.seconds:.1f} s" if s.cell is not None else "",
                f"{s.rss_nbytes / 2**20:.0f} MiB" if s.rss_nbytes else "",
            ]
        )
    return table(["rank", "pid", "host", "devices", "state", "cell", "for", "memory"], rows)


def clusters(records: Sequence[ClusterRecord], here: Sequence[str], now_ns: int) -> str:
    """One row a running cluster; those that this notebook is connected to are marked."""
    if not records:
        return "No cluster is running. Start one: %jaxcluster start -n 4"
    rows = []
    for r in records:
        age_s = (now_ns - r.created_ns) / 1e9
        age = f"{age_s:.0f} s" if age_s < 90 else f"{age_s / 60:.0f} min"
        owner = f"pid {r.owner.partition(':')[0]}" if r.owner else "detached"
        rows.append(
            [
                "*" if r.name in here else "",
                r.name,
                str(r.spec.num_processes),
                r.spec.platform,
                r.spec.launcher,
                r.hostname,
                age,
                owner,
                r.notebook,
            ]
        )
    header = ["", "name", "ranks", "platform", "launcher", "host", "age", "owner", "notebook"]
    return table(header, rows)


def spanning_array(info: wire.ArrayInfo, values: np.ndarray[Any, Any] | None, cut: bool) -> str:
    """An array that spans processes: shape, dtype, sharding, and its values as numpy prints them.

    Args:
      values: the whole array, or its corners where ``cut`` (see ``transfer.sample``).
    """
    head = f"Array(shape={tuple(info.shape)}, dtype={info.dtype})\nsharding: {info.sharding}"
    if values is None:
        return f"{head}\n(values not at hand)"
    # With a threshold of 0 numpy leaves out the middle of each axis longer than 2 x 3: just the
    # one position that stands for all those which were not fetched.
    body = np.array2string(values, threshold=0 if cut else values.size + 1, edgeitems=3)
    return f"{head}\n{body}"


def outputs(record: CellRecord) -> str:
    """Every rank's text of a cell, equal ones once."""
    parts = []
    for group in group_outputs(record.records):
        text = "".join(plain_output(o) for o in group.outputs).rstrip("\n")
        parts.append(f"── {name_ranks(group.ranks)} ──\n{text or '(no output)'}")
    return "\n".join(parts)


def plain_output(output: wire.RankOutput) -> str:
    """One output as text."""
    if output.kind == "stream":
        return str(output.content["text"])
    if "data" in output.content:
        return str(output.content["data"].get("text/plain", "")) + "\n"
    return ""


def same_as(ranks: Sequence[int], other: int) -> str:
    """``ranks 1-3: same as rank 0``."""
    return f"── {name_ranks(ranks)}: same as rank {other} ──"


__all__ = [
    "clusters",
    "format_ranks",
    "outputs",
    "plain_output",
    "same_as",
    "spanning_array",
    "status",
    "table",
]
