"""Checks of this machine, or of hosts, with what could be wrong and how to fix it.

This machine is one host among others. The same rows judge each host's versions, devices and memory.
jax is never imported here. Another process looks for jax's private names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxcluster.host.facts import HostFacts
from jaxcluster.hosts.agent import requests
from jaxcluster.hosts.agent.client import answers
from jaxcluster.hosts.agent.report import host_report
from jaxcluster.hosts.fleet import Host
from jaxcluster.hosts.ways import try_ways
from jaxcluster.plan.spec import INSTALL
from jaxcluster.plan.versions import NEWEST_TRIED_JAX, OLDEST_JAX, TRIED_JAX, release
from jaxcluster.supervision.starting import findable
from jaxcluster.text import format_table, plural

ASK_S = 10.0
LITTLE_NBYTES = 1 << 30  # of memory: a rank alone has some 300 MB
LITTLE_SHM_NBYTES = 64 << 20


@dataclass(frozen=True)
class Row:
    """One thing looked at, on one host or on several.

    Attributes:
      cells: what was found on each.
      ok: ``None`` for a warning.
      fix: what to do, unless it is ok.
    """

    name: str
    cells: tuple[str, ...]
    ok: bool | None = True
    fix: str = ""


def run_checks(environ: Mapping[str, str] = os.environ) -> list[Row]:
    """All checks of this machine, as it is for a cluster with this environment."""
    return [
        *judge([host_report(environ)]),
        check_private_names(environ),
        check_lab_extension(),
    ]


def render(rows: Sequence[Row], hosts: Sequence[str] = ()) -> str:
    """The rows as plain text: ✓ good, ! a warning, ✗ to be fixed, with the fix below."""
    marks = {True: "✓", None: "!", False: "✗"}
    head, told = [("", "", *hosts)] * bool(hosts), []
    table = format_table([*head, *((marks[row.ok], row.name, *row.cells) for row in rows)])
    for line, row in zip(table, [Row("", ())] * len(head) + [*rows], strict=True):
        told += [line] if row.ok else [line, f"   fix: {row.fix}"]
    return "\n".join(told)


# --------------------------------------------------------------------------- each host


def judge(facts: Sequence[HostFacts | None]) -> list[Row]:
    """The answers of hosts about themselves; ``None`` for one that does not answer."""
    known = [said for said in facts if said is not None]

    def row(name: str, tell: Callable[[HostFacts], str], poor: bool = False, fix: str = "") -> Row:
        cells = tuple("" if said is None else tell(said) for said in facts)
        return Row(name, cells, None if poor else True, fix)

    names = known[0].versions if known else ()
    versions = {n: [one.versions.get(n, "") if one else None for one in facts] for n in names}
    idle = [said.gpu_platform for said in known if said.gpus and not said.gpu_plugin]
    plugin = INSTALL.get(idle[0], INSTALL["cuda"]) if idle else ""
    small = any((said.free_nbytes or LITTLE_NBYTES) < LITTLE_NBYTES for said in known)
    tight = any((said.shm_free_nbytes or 0) < LITTLE_SHM_NBYTES for said in known)
    return [
        *(judge_versions(*one) for one in versions.items()),
        row("address", lambda said: said.address),
        row("devices", _devices, bool(idle), f"the GPUs need JAX's plugin: {plugin}"),
        row("free memory", lambda said: _size(said.free_nbytes), small,
            "use fewer ranks there, or end other programs"),
        row("/dev/shm", lambda said: _size(said.shm_free_nbytes), tight,
            "in a container: docker run --shm-size=1g; otherwise remove old files from /dev/shm"),
    ]  # fmt: skip


def judge_versions(name: str, versions: Sequence[str | None]) -> Row:
    """Whether a package has the same version on all hosts, and one that clusters work with."""
    cells = tuple("" if v is None else v or "none" for v in versions)
    found = [v for v in versions if v is not None]
    oldest = OLDEST_JAX if name in ("jax", "jaxlib") else "0"  # pip has seen to the others
    if any(release(v) < release(oldest) for v in found):  # or there is none
        return Row(name, cells, False, f'pip install -U "{name}>={oldest}"')
    # Python's patch level may differ.
    if len({v.rpartition(".")[0] if name == "python" else v for v in found}) > 1:
        fix = "install the same on all hosts, or name another Python there: --python PATH"
        return Row(name, cells, False, fix)
    if name == "jax" and any(release(v)[:2] > release(NEWEST_TRIED_JAX) for v in found):
        return Row(name, cells, None, f"tried up to {NEWEST_TRIED_JAX}; if it fails: {TRIED_JAX}")
    return Row(name, cells)


def _devices(said: HostFacts) -> str:
    counts = {"TPU chip": said.tpu_chips, "GPU": len(said.gpus), "CPU core": said.cpus}
    return ", ".join(plural(count, what) for what, count in counts.items() if count)


def _size(nbytes: int | None) -> str:
    return "not known" if nbytes is None else f"{nbytes / 2**30:,.1f} GiB"


# --------------------------------------------------------------------------- this machine


def check_private_names(environ: Mapping[str, str]) -> Row:
    """Whether a new process can import jax, and finds the private names that jaxcluster uses."""
    name, fix = "jax's private names", f"use a jax that was tried: {TRIED_JAX}"
    argv = [sys.executable, "-P", "-m", "jaxcluster.rank.private.self_test"]
    env = findable(environ, os.getcwd())
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Row(name, (f"jax can't be imported: {why}",), False, fix)
    if missing := json.loads(done.stdout.splitlines()[-1]):
        lost = "; ".join(f"{what} ({cost})" for what, cost in missing.items())
        return Row(name, (f"moved in this jax: {lost}",), None, fix)
    return Row(name, ("all found",))


def check_lab_extension() -> Row:
    """Whether JupyterLab has the extension; a build without Node leaves it out."""
    from jupyter_core.paths import jupyter_path

    if any(Path(f, "jaxcluster-labextension").is_dir() for f in jupyter_path("labextensions")):
        return Row("Lab extension", ("is installed",))
    told = "is not installed: JupyterLab has no sidebar, badges and buttons"
    fix = "pip install --force-reinstall --no-deps jaxcluster   (from a checkout: with Node 20)"
    return Row("Lab extension", (told,), None, fix)


# --------------------------------------------------------------------------- hosts


def look(places: Sequence[Host]) -> str:
    """Ask all hosts, and show a column for each. Takes 10 s at most if one does not answer."""
    asked = [(place, place.begin(requests.Facts())) for place in places if not place.lost]
    found = answers(asked, ASK_S)
    facts = [found[place][0] if place in found else None for place in places]
    told = render([*judge(facts), _ways(places, facts)], [place.name for place in places])
    why = [p.lost or p.condition.lstrip(": ") or "does not answer" for p in places]
    silent = [f"! {p.name}: {why[n]}" for n, p in enumerate(places) if facts[n] is None]
    return "\n".join([told, *silent])


def _ways(places: Sequence[Host], facts: Sequence[HostFacts | None]) -> Row:
    """Whether each host reaches each other one: JAX's ranks talk at ports of any number."""
    alive = {p: said.address for p, said in zip(places, facts, strict=True) if said is not None}
    _, found = try_ways([*alive], alive)
    cells, cut = [], []
    for place in places:
        ways = found.get(place, {}).items()
        deaf = {other.name: why for other, (_, why) in ways if why and other != place}
        cut += [f"{place.name} to {name}" for name in deaf]
        not_them = ", ".join(f"not {name} ({why})" for name, why in deaf.items())
        cells.append(not_them or "all others" * (place in found))
    fix = f"allow TCP on all ports between the hosts ({', '.join(cut)}), as JAX needs it"
    return Row("reaches", tuple(cells), not cut, fix)
