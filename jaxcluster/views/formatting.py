"""Numbers, names and notes as text, the same in text, HTML and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jaxcluster.cluster.resources import Sample
from jaxcluster.model.layout import ArrayLayout, CheckResult, Device, TreeLayout
from jaxcluster.ranks import begin_ranks, by_value, format_ranks, name_ranks
from jaxcluster.text import format_nbytes, plural
from jaxcluster.wire import Bounds, Death, RankState


def index(bounds: Bounds) -> str:
    """``[0:2, 0:8]``, as it would be typed."""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in bounds) + "]"


def array_type(dtype: str, shape: Sequence[int]) -> str:
    """``float32[8, 8]``."""
    return f"{dtype}[{', '.join('?' if size < 0 else str(size) for size in shape)}]"


def device(found: Device | None, id: int) -> str:
    """``CPU 2048``, as JAX's own picture calls it."""
    return f"{found.platform.upper()} {id}" if found is not None else f"device {id}"


def devices(ids: Iterable[int], known: Mapping[int, Device]) -> str:
    """``CPU 0-1, 2048-2049``: runs joined, platforms said once."""
    by_platform: dict[str, list[int]] = {}
    for id in ids:
        found = known.get(id)
        by_platform.setdefault(found.platform.upper() if found else "device", []).append(id)
    return "; ".join(f"{name} {format_ranks(held)}" for name, held in by_platform.items())


def headline(layout: ArrayLayout) -> str:
    """How big the array is, and over what it is spread."""
    facts = [format_nbytes(layout.nbytes)]
    held = layout.bytes_per_device
    if not layout.parts:
        facts.append("held by no device")
    elif layout.spans:
        facts.append(
            f"{plural(len(layout.parts), 'part')} on {plural(len(held), 'device')} of "
            f"{plural(len(layout.ranks), 'process', 'processes')}"
        )
    elif len(layout.ranks) > 1:
        facts.append(f"{name_ranks(layout.ranks)}: each has its own")
    else:
        facts.append(f"local to {name_ranks(layout.ranks)}")
    if layout.spans and layout.parts:
        copies = layout.replication
        facts.append("nothing replicated" if copies == 1 else f"{copies:g} copies of each element")
        if layout.imbalance > 1.001:
            facts.append(f"uneven: the fullest device has {layout.imbalance:.2f} times the mean")
    return " · ".join(facts)


def facts(layout: ArrayLayout) -> list[str]:
    """The sharding as JAX prints it, and what is out of the ordinary."""
    lines = [f"sharding: {layout.sharding}"] if layout.sharding else []
    if layout.memory_kind not in ("", "device", "unpinned_host"):
        lines.append(f"memory: {layout.memory_kind}")
    if not layout.committed and layout.parts:
        lines.append("not committed to its devices: JAX may move it to where it is used")
    if not layout.ready:
        lines.append("still being computed")
    if layout.missing:
        where = ", ".join(index(gap) for gap in layout.gaps[:4])
        more = f" and {len(layout.gaps) - 4} more" if len(layout.gaps) > 4 else ""
        lines.append(
            f"{plural(layout.missing, 'element')} held by no process that answered"
            + (f": {where}{more}" if where else "")
        )
    return lines + notes(layout)


def notes(layout: ArrayLayout | TreeLayout) -> list[str]:
    """Notes on single ranks; equal ones once."""
    told = {rank: note.removeprefix(f"rank {rank} ") for rank, note in layout.notes.items()}
    return [f"{begin_ranks(ranks)}: {note}" for note, ranks in by_value(told).items()]


def age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def holders(copies: Sequence[tuple[int, int]]) -> str:
    """``rank 2 (device 4097)``."""
    ids = format_ranks(id for _, id in copies)
    return f"{name_ranks(r for r, _ in copies)} (device{'s' if len(copies) > 1 else ''} {ids})"


def check(result: CheckResult, limit: int = 20) -> list[str]:
    """What a check has found, worst first."""
    lines = []
    for d in result.differences:
        most, *odd = d.groups
        lines.append(
            f"✖ {''.join(d.leaf) or result.name} {index(d.index)}: the copies differ: "
            f"{'; '.join(map(holders, odd))} against {holders(most)}"
        )
    same: dict[tuple[tuple[str, ...], Bounds, int, int], list[int]] = {}
    for b in result.bad:
        same.setdefault((b.leaf, b.index, b.nan, b.inf), []).append(b.rank)
    for (leaf, where, nan, inf), ranks in same.items():
        what = ", ".join(f"{n:,} {word}" for n, word in ((nan, "NaN"), (inf, "Inf")) if n)
        lines.append(
            f"✖ {''.join(leaf) or result.name} {index(where)}: {what} on {name_ranks(ranks)}"
        )
    hidden = len(lines) - limit
    lines = [*lines[:limit], f"  ... and {hidden} more"] if hidden > 0 else lines
    for rank, why in result.unchecked.items():
        lines.append(f"? rank {rank} was not checked: {why}")
    if not (result.differences or result.bad):
        compared = (
            f"all copies of {plural(result.compared, 'replicated part')} are bitwise equal"
            if result.compared
            else "nothing is replicated"
        )
        shards = plural(result.shards, "shard")
        lines.insert(0, f"✔ {shards} checked: {compared}, no NaN, no Inf")
    return lines


def doing(s: RankState, dead: Mapping[int, Death]) -> str:
    """What a rank does, in a few words."""
    if s.state == "dead" and s.rank in dead:
        return f"dead: {dead[s.rank].why}"
    if s.queued and s.state == "running":
        return f"running, {s.queued} waiting"
    return s.state


def cell(state: RankState) -> str:
    """Where a rank is in a cell: ``[7] line 3``; "" where it is in none."""
    if state.cell is None:
        return ""
    return f"[{state.cell}]" + (f" line {state.line}" if state.line else "")


def cpu(sample: Sample | None) -> str:
    """Use of processors: ``12 %``; ``3.2 CPUs`` from two on."""
    percent = sample.cpu if sample is not None else None
    if percent is None:
        return ""
    return f"{percent:.0f} %" if percent < 200 else f"{percent / 100:.1f} CPUs"


def gpu(sample: Sample | None) -> str:
    """GPUs now: ``40 %, 12 GiB of 80 GiB``."""
    if sample is None or not sample.gpu_total_nbytes:
        return ""
    used = f"{format_nbytes(sample.gpu_used_nbytes)} of {format_nbytes(sample.gpu_total_nbytes)}"
    return used if sample.gpu is None else f"{sample.gpu:.0f} %, {used}"
