"""States, clusters, stacks and outputs as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxcluster import wire
from jaxcluster.agreement.refusals import Place
from jaxcluster.cluster.resources import Sample
from jaxcluster.model.outputs import RankRecord, group_outputs
from jaxcluster.ranks import by_value, name_hosts, name_ranks, several_hosts
from jaxcluster.records.registry import ClusterRecord
from jaxcluster.text import format_nbytes, format_table
from jaxcluster.views import blocks, formatting
from jaxcluster.views.blocks import Table


def status_table(
    states: Sequence[wire.RankState],
    dead: Mapping[int, wire.Death],
    samples: Mapping[int, Sample] | None = None,
) -> Table:
    """One row a rank: where it runs, what it is doing, and what it uses.

    Args:
      samples: of now. Without them there is the memory alone.
    """
    hosts = several_hosts({s.rank: s.hostname for s in states})
    gpus = any(one.gpu_total_nbytes for one in (samples or {}).values())
    head = ["rank", "pid", *["host"] * bool(hosts), "devices", "state", "cell", "for", "memory"]
    head += [*["CPU"] * (samples is not None), *["GPU"] * gpus]
    rows = []
    for s in states:
        found = (samples or {}).get(s.rank)
        rss = found.rss_nbytes if found is not None else s.rss_nbytes
        row = [str(s.rank), str(s.pid), *[s.hostname] * bool(hosts), " ".join(s.devices)]
        row += [formatting.doing(s, dead), formatting.cell(s)]
        row += [f"{s.seconds:.1f} s" if s.cell is not None else ""]
        row += [format_nbytes(rss) if rss else ""]
        row += [*[formatting.cpu(found)] * (samples is not None), *[formatting.gpu(found)] * gpus]
        rows.append(row)
    return Table(head, rows)


def status(states: Sequence[wire.RankState], dead: Mapping[int, wire.Death]) -> str:
    """The same as text."""
    return blocks.text([status_table(states, dead)])


def clusters(
    records: Sequence[ClusterRecord],
    here: Sequence[str],
    now_ns: int,
    unreachable: Mapping[str, Sequence[str]] | None = None,
    hostname: str = "",
) -> str:
    """One row a running cluster; ``*`` marks the one that this notebook's cells run on.

    Args:
      here: those that this notebook is connected to, marked ``+``; the last one is in use.
      unreachable: of clusters, by their names, the hosts that can't be reached from here now.
      hostname: of this machine: pids of another one's are called so.
    """
    if not records:
        return "No cluster is running. Start one: %jaxcluster start -n 4"
    rows = []
    for r in records:
        hosts = [f.hostname for f in r.facts] if not r.spec.is_here else []
        gone = (unreachable or {}).get(r.name)
        unseen = f" ({', '.join(gone)} unreachable)" if gone else ""
        owner = f"pid {r.owner.partition(':')[0]}" if r.owner else "detached"
        if hostname not in ("", r.hostname):
            owner += f" on {r.hostname}" if r.owner else f" from {r.hostname}"
        rows.append(
            [
                "" if r.name not in here else "*" if r.name == here[-1] else "+",
                r.name,
                str(r.spec.num_processes),
                r.spec.platform,
                r.spec.launcher,
                name_hosts(hosts or [r.hostname]) + unseen,
                formatting.age((now_ns - r.created_ns) / 1e9),
                owner,
                r.notebook,
            ]
        )
    header = ["", "name", "ranks", "platform", "launcher", "host", "age", "owner", "notebook"]
    lines = format_table([header, *rows])
    if len(here) > 1:
        lines += ["", "* cells of this notebook run on it; + connected: %jaxcluster attach NAME"]
    return "\n".join(lines)


def spanning_array(info: wire.ArrayInfo, values: np.ndarray[Any, Any] | None, cut: bool) -> str:
    """An array that spans processes: shape, dtype, sharding, and its values as numpy prints them.

    Args:
      values: the whole array, or its corners where ``cut`` (see ``array_queries.corners``).
    """
    head = f"Array(shape={tuple(info.shape)}, dtype={info.dtype})\nsharding: {info.sharding}"
    if values is None:
        return f"{head}\n(values not available)"
    # With a threshold of 0 numpy leaves out the middle of each axis longer than 2 x 3: just the
    # one position that stands for all those which were not fetched.
    body = np.array2string(values, threshold=0 if cut else values.size + 1, edgeitems=3)
    return f"{head}\n{body}"


def stacks(reports: Mapping[int, wire.RankReport]) -> str:
    """Where each rank is: equal stacks once, from the cell inwards."""
    groups = by_value({rank: _stack(report) for rank, report in reports.items()})
    return "\n".join(f"── {name_ranks(r)} ──\n{shown}" for shown, r in groups.items())


def _stack(report: wire.RankReport) -> str:
    """Where the main thread is in its cell, and where other threads of the user's are."""
    state, frames = report.state.state, report.stack
    if state == "dead":
        return "died"
    first = next((i for i, frame in enumerate(frames) if frame[4] is not None), len(frames) - 1)
    parts = [_frames(frames[first:]) if state == "running" else f"{state}, in no cell"]
    parts += [f"thread {name!r}:\n{_frames(stack)}" for name, stack in report.threads.items()]
    return "\n".join(parts)


def _frames(frames: Sequence[Sequence[Any]]) -> str:
    shown: list[str] = []
    folded: list[str] = []
    for file, line, function, source, cell, is_folded in frames:
        if is_folded:
            folded.append(function)
            continue
        shown += _fold(folded)
        folded = []
        place = f"cell [{cell}] line {line}" if cell is not None else f"{file}:{line}"
        shown.append(f"  {place}, in {function}\n    {source or ''}".rstrip())
    return "\n".join([*shown, *_fold(folded)])


def _fold(functions: Sequence[str]) -> list[str]:
    """Frames of JAX's own, in a line: the innermost says what is waited for."""
    if not functions:
        return []
    frames = "frame" if len(functions) == 1 else "frames"
    return [f"  [... {len(functions)} {frames} of JAX, the innermost in {functions[-1]}]"]


def place(where: Place) -> str:
    """``cell [3] line 2``."""
    parts = [f"cell [{where.cell}]"] if where.cell else []
    parts += [f"line {where.line}"] if where.line else []
    return " ".join(parts) or where.within


def outputs(records: Mapping[int, RankRecord]) -> str:
    """Every rank's text of a cell, equal ones once."""
    parts = []
    for group in group_outputs(records):
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
