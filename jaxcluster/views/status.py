"""Tables of clusters and ranks: what they do and use, also live; and their stacks.

The live table is a display and no widget. So a saved notebook keeps its last state, and nbconvert
shows it. It is HTML alone, so that it is the same with and without the Lab extension.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxcluster import cluster, wire
from jaxcluster.cluster.running import start_in_cell
from jaxcluster.errors import JaxClusterError
from jaxcluster.hosts.records.registry import ClusterRecord
from jaxcluster.model import waiting
from jaxcluster.ranks import by_value, name_hosts, name_ranks, several_hosts
from jaxcluster.text import format_nbytes, format_seconds
from jaxcluster.views import blocks
from jaxcluster.views.blocks import Block, Row, Table
from jaxcluster.views.displays import Bundle
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.status import Resources

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster

BUSY_S = 0.5  # between two looks while some rank runs a cell
IDLE_S = 2.0
WAIT_S = 0.3  # for what the ranks use

_following: dict[str, threading.Event] = {}  # by the notebook's cell


# --------------------------------------------------------------------------- ranks


def table(
    record: ClusterRecord,
    states: Sequence[wire.RankState],
    dead: Mapping[int, wire.Death],
    used: Mapping[int, wire.RankResources],
) -> Table:
    """One row a rank: where it runs, what it is doing, and what it uses."""
    hosts = several_hosts({one.rank: one.hostname for one in record.facts})
    rows: list[Row] = []
    for s in states:
        found = used.get(s.rank)
        line = f" line {s.line}" if s.line else ""
        rows.append(
            {
                "rank": str(s.rank),
                "pid": str(record.pids[s.rank]),
                "host": hosts.get(s.rank),
                "devices": " ".join(f"{d.platform}:{d.id}" for d in record.devices[s.rank].devices),
                "state": _doing(s, dead),
                "cell": f"[{s.cell}]{line}" if s.cell is not None else "",
                "for": f"{s.seconds:.1f} s" if s.cell is not None else "",
                "memory": format_nbytes(found.rss_nbytes) if found is not None else "",
                "CPU": _cpu(found),
                "GPU": _gpu(found),
            }
        )
    return blocks.table(rows)


def _doing(s: wire.RankState, dead: Mapping[int, wire.Death]) -> str:
    """A rank's state, in a few words."""
    if s.state == "dead" and s.rank in dead:
        return f"dead: {dead[s.rank].why}"
    if s.queued and s.state == "running":
        return f"running, {s.queued} waiting"
    return s.state


def _cpu(found: wire.RankResources | None) -> str | None:
    """Use of processors: ``12 %``; ``3.2 CPUs`` from two on."""
    if found is None:
        return None
    return f"{found.cpu:.0f} %" if found.cpu < 200 else f"{found.cpu / 100:.1f} CPUs"


def _gpu(found: wire.RankResources | None) -> str | None:
    """GPUs now: ``40 %, 12 GiB of 80 GiB``; None where there are none."""
    if found is None or not found.gpu_total_nbytes:
        return None
    memory = f"{format_nbytes(found.gpu_used_nbytes)} of {format_nbytes(found.gpu_total_nbytes)}"
    return memory if found.gpu is None else f"{found.gpu:.0f} %, {memory}"


def look(cluster: Cluster) -> list[Block]:
    """The state and use of all ranks now, who waits for whom, and which rank comes last."""
    states, hosts, link = cluster.status(), cluster.world.hosts, cluster.world.link
    looked = cluster.look(waiting.LAUNCHES)
    running = {s.rank: s for s in states if s.state == "running"}
    seq = max((s.seq for s in running.values()), default=0)
    late = waiting.find_late(looked)
    told = [waiting.line(seq, running, [], looked, hosts), late.told(hosts) if late else ""]
    answering = [s.rank for s in states if s.state not in ("dead", "silent")]
    used = replies(link.gather(answering, Resources(), timeout_s=WAIT_S))
    return [table(cluster.record, states, cluster.dead, used), *filter(None, told)]


def seen(cluster: Cluster | None) -> Bundle:
    """The ranks' state and use now, with the time; None: there is no cluster."""
    if cluster is None:
        return blocks.bundle(["This notebook has no cluster."])
    return blocks.bundle([*look(cluster), "", f"as of {time.strftime('%H:%M:%S')}"])


def live(cluster: Cluster, show: Callable[[Bundle], None], cell_id: str = "") -> threading.Event:
    """Show what ``seen`` says, until the cluster ends.

    A thread asks the ranks' control channels, which answer during a cell.

    Args:
      show: shows a MIME bundle in place of the one before.
      cell_id: the notebook's cell. The display that it has shown before is left as it is.

    Returns:
      what ends it, when it is set.
    """
    done = threading.Event()
    _following.pop(cell_id, done).set()
    done = _following[cell_id] = threading.Event()
    show(seen(cluster))

    def follow() -> None:
        while not done.wait(BUSY_S if cluster.cells else IDLE_S):
            try:
                show(seen(cluster))
            except JaxClusterError as error:  # the cluster was stopped
                told = f"{str(error).partition(chr(10))[0]} (since {time.strftime('%H:%M:%S')})"
                show(blocks.bundle([told]))
                return

    start_in_cell(follow, "jaxcluster-status")
    return done


# --------------------------------------------------------------------------- clusters


def running(here: Sequence[str] = ()) -> str:
    """This user's clusters as ``clusters`` shows them."""
    records, unreachable = cluster.listed()
    return clusters(records, here, time.time_ns(), unreachable, socket.gethostname())


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
    rows: list[Row] = []
    for r in records:
        hosts = [f.hostname for f in r.facts] if not r.spec.is_here else []
        gone = (unreachable or {}).get(r.name)
        unseen = f" ({', '.join(gone)} unreachable)" if gone else ""
        owner = f"pid {r.owner.partition(':')[0]}" if r.owner else "detached"
        if hostname not in ("", r.hostname):
            owner += f" on {r.hostname}" if r.owner else f" from {r.hostname}"
        rows.append(
            {
                "": "" if r.name not in here else "*" if r.name == here[-1] else "+",
                "name": r.name,
                "ranks": str(r.spec.num_processes),
                "platform": r.spec.platform,
                "launcher": r.spec.launcher,
                "host": name_hosts(hosts or [r.hostname]) + unseen,
                "age": format_seconds((now_ns - r.created_ns) / 1e9),
                "owner": owner,
                "notebook": r.notebook,
            }
        )
    marks = ["", "* cells of this notebook run on it; + connected: %jaxcluster attach NAME"]
    return blocks.text([blocks.table(rows), *(marks if len(here) > 1 else [])])


# --------------------------------------------------------------------------- stacks


def stacks(reports: Mapping[int, wire.RankReport]) -> str:
    """The stacks of the ranks from the cell inwards, equal ones once."""
    groups = by_value({rank: _stack(report) for rank, report in reports.items()})
    return "\n".join(f"── {name_ranks(r)} ──\n{shown}" for shown, r in groups.items())


def _stack(report: wire.RankReport) -> str:
    """The stack of the main thread in its cell, and of the user's other threads."""
    state, frames = report.state, report.stack
    first = next((i for i, frame in enumerate(frames) if frame[4] is not None), len(frames) - 1)
    parts = [_frames(frames[first:]) if state == "running" else f"{state}, in no cell"]
    parts += [f"thread {name!r}:\n{_frames(stack)}" for name, stack in report.threads.items()]
    return "\n".join(parts)


def _frames(frames: Sequence[Sequence[Any]]) -> str:
    """Frames of JAX's own are a line: the innermost says what is waited for."""
    shown: list[str] = []
    folded = 0
    for file, line, function, source, cell, is_folded in frames:
        folded = folded + 1 if is_folded else 0
        if folded:
            shown = shown[:-1] if folded > 1 else shown
            many = "frame" if folded == 1 else "frames"
            shown.append(f"  [... {folded} {many} of JAX, the innermost in {function}]")
        else:
            place = f"cell [{cell}] line {line}" if cell is not None else f"{file}:{line}"
            shown.append(f"  {place}, in {function}\n    {source or ''}".rstrip())
    return "\n".join(shown)
