"""What ``%jaxcluster doctor`` finds on the hosts of a cluster: a column for each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxcluster.agent import requests
from jaxcluster.agent.report import HostFacts
from jaxcluster.allocation import allocation
from jaxcluster.allocation.fleet import Host
from jaxcluster.doctor import MIN_SHM_NBYTES
from jaxcluster.errors import LaunchError
from jaxcluster.plan.versions import too_old
from jaxcluster.ranks import name_ranks
from jaxcluster.text import format_table
from jaxcluster.wire import ClusterSpec
from jaxcluster.wire.requests import Request

ASK_S = 10.0
LITTLE_NBYTES = 1 << 30  # of memory: a rank alone has some 300 MB

R = TypeVar("R")


@dataclass(frozen=True)
class Row:
    """One thing looked at on all hosts; ``ok`` and ``fix`` are as ``doctor.Check`` has them."""

    name: str
    cells: tuple[str, ...]
    ok: bool | None = True
    fix: str = ""


def look(places: Sequence[Host]) -> str:
    """Ask all hosts, and show what they say. 10 s at most where one does not answer."""
    facts = [_ask(place, requests.Facts()) for place in places]
    answered = [place for place, said in zip(places, facts, strict=True) if said is not None]
    rows = [*judge(facts), _ways(places, facts, answered)]
    if any(place.ranks for place in places):
        ranks = [name_ranks(place.ranks) if place.ranks else "none" for place in places]
        rows = [Row("ranks", tuple(ranks)), *rows]
    why = [p.lost or p.condition.lstrip(": ") or "does not answer" for p in places]
    silent = [f"! {p.name}: {why[n]}" for n, p in enumerate(places) if facts[n] is None]
    return "\n".join([render([place.name for place in places], rows), *silent])


def look_before(spec: ClusterSpec, say: Callable[[str], None], timeout_s: float) -> str:
    """Start the agents of a cluster and no rank, ask them, and end them; a launcher may queue.

    Raises:
      LaunchError: an agent did not come up.
    """
    return allocation.examine(spec, look, say, timeout_s)


def _ask(place: Host, request: Request[R]) -> R | None:
    if not place.lost:
        with contextlib.suppress(LaunchError):
            return place.ask(request, ASK_S)
    return None


def _ways(places: Sequence[Host], facts: Sequence[HostFacts | None], alive: Sequence[Host]) -> Row:
    """Whether each host reaches each other one: JAX's ranks talk at ports of any number."""
    address = {p.name: said.address for p, said in zip(places, facts, strict=True) if said}
    ports = {p.name: _ask(p, requests.Listen(address[p.name])) for p in alive}
    to = [(address[name], port) for name, port in ports.items() if port]
    names = [name for name, port in ports.items() if port]
    found = {place.name: _ask(place, requests.Ways(to)) for place in alive}
    for place in alive:
        _ask(place, requests.Listen(""))
    return judge_ways([place.name for place in places], names, found)


# --------------------------------------------------------------------------- pure


def judge(facts: Sequence[HostFacts | None]) -> list[Row]:
    """What the hosts say of themselves; what must be equal everywhere and is not is wrong."""
    known = [said for said in facts if said is not None]
    versions = dict.fromkeys(name for said in known for name in said.versions)

    def row(
        name: str, tell: Callable[[HostFacts], str], ok: bool | None = True, fix: str = ""
    ) -> Row:
        return Row(name, tuple("" if said is None else tell(said) for said in facts), ok, fix)

    rows = []
    for name in versions:
        values = {_short(name, said.versions.get(name, "")) for said in known}
        fix = "install the same on all hosts, or name another Python there: --python PATH"
        old = too_old(filter(None, values)) if name == "jax" else None
        if old is not None:
            fix = " ".join(old).replace("Try:", "On these hosts:")
        ok = len(values) < 2 and old is None
        rows.append(row(name, lambda said, n=name: said.versions.get(n) or "none", ok, fix))  # type: ignore[misc]
    rows.append(row("address", lambda said: said.address))
    idle = any(said.gpus and not said.gpu_plugin for said in known)
    fix = 'there: pip install "jax[cuda12]"   (or cuda13), or the GPUs stay unused'
    rows.append(row("devices", _devices, None if idle else True, fix))
    small = any((said.free_nbytes or LITTLE_NBYTES) < LITTLE_NBYTES for said in known)
    fix = "use fewer ranks there, or end other programs"
    rows.append(row("free memory", lambda s: _size(s.free_nbytes), None if small else True, fix))
    tight = any((said.shm_free_nbytes or 0) < MIN_SHM_NBYTES for said in known)
    fix = "in a container: docker run --shm-size=1g; otherwise remove old files from /dev/shm"
    rows.append(row("/dev/shm", lambda s: _size(s.shm_free_nbytes), None if tight else True, fix))
    return rows


def judge_ways(
    hosts: Sequence[str], targets: Sequence[str], found: Mapping[str, Sequence[str] | None]
) -> Row:
    """Which hosts reach which.

    Args:
      targets: to whom the ways were tried.
      found: by host, why each of ``targets`` was not reached; "" where it was.
    """
    cells, cut = [], []
    for host in hosts:
        if (whys := found.get(host)) is None:
            cells.append("")
            continue
        pairs = zip(targets, whys, strict=True)
        deaf = {name: why for name, why in pairs if why and name != host}
        cut += [f"{host} to {name}" for name in deaf]
        told = ", ".join(f"not {name} ({why})" for name, why in deaf.items())
        cells.append(told or ("all others" if len(targets) > 1 else "no other"))
    fix = (
        f"allow TCP on all ports between the hosts ({', '.join(cut)}): JAX's coordinator and the "
        "ranks' collectives need it"
    )
    return Row("reaches", tuple(cells), not cut, fix)


def render(hosts: Sequence[str], rows: Sequence[Row]) -> str:
    """The table as plain text: ✓ good, ! a warning, ✗ to be fixed, with the fix below."""
    table = [("", *hosts), *((row.name, *row.cells) for row in rows)]
    margin = " " * max(len(line[0]) for line in table)
    lines = []
    for row, cells in zip([None, *rows], format_table(table), strict=True):
        mark = " " if row is None else {True: "✓", None: "!", False: "✗"}[row.ok]
        lines.append(f"{mark} {cells}".rstrip())
        if row is not None and row.fix and row.ok is not True:
            lines.append(f"  {margin}  fix: {row.fix}")
    return "\n".join(lines)


def _short(name: str, version: str) -> str:
    """What must be equal of a version: Python's patch level may differ."""
    return ".".join(version.split(".")[:2]) if name == "python" else version


def _devices(said: HostFacts) -> str:
    found = [f"{said.tpu_chips} TPU chips"] if said.tpu_chips else []
    found += [f"{len(said.gpus)} GPUs"] if said.gpus else []
    return ", ".join([*found, f"{said.cpus} CPU cores"])


def _size(nbytes: int | None) -> str:
    return "not known" if nbytes is None else f"{nbytes / 2**30:,.1f} GiB"
