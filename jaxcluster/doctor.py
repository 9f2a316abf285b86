"""What could be wrong with this machine, or with hosts, and how to fix it.

This machine is one host among others: the same rows judge the versions, devices and memory of each.
jax is never imported here. A process of its own looks for jax's private names.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from jaxcluster.agent import requests
from jaxcluster.agent.report import HostFacts, host_report, installed_version
from jaxcluster.allocation.fleet import Host
from jaxcluster.errors import LaunchError
from jaxcluster.plan.spec import INSTALL
from jaxcluster.plan.versions import NEWEST_TRIED_JAX, OLDEST_JAX, TRIED_JAX, release
from jaxcluster.ranks import name_ranks
from jaxcluster.supervision.starting import findable
from jaxcluster.text import format_table, plural
from jaxcluster.wire.ops import Operation

ASK_S = 10.0
LITTLE_NBYTES = 1 << 30  # of memory: a rank alone has some 300 MB
LITTLE_SHM_NBYTES = 64 << 20
OLDEST = {
    "python": "3.11", "jax": OLDEST_JAX, "jaxlib": OLDEST_JAX, "numpy": "2", "ipyparallel": "9",
    "ipykernel": "6.29",
}  # fmt: skip
LAB_FIX = "pip install --force-reinstall --no-deps jaxcluster"
NEWEST_TRIED = {"python": "3.14", "jax": NEWEST_TRIED_JAX}

R = TypeVar("R")


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
        check_proxies(environ),
        check_lab_extension(),
    ]


def render(rows: Sequence[Row], hosts: Sequence[str] = ()) -> str:
    """The rows as plain text: ✓ good, ! a warning, ✗ to be fixed, with the fix below."""
    table = [("", *hosts)] * bool(hosts) + [(row.name, *row.cells) for row in rows]
    margin = " " * max((len(line[0]) for line in table), default=0)
    told = format_table(table)
    lines = [f"  {told.pop(0)}".rstrip()] if hosts else []
    for row, cells in zip(rows, told, strict=True):
        lines.append(f"{ {True: '✓', None: '!', False: '✗'}[row.ok] } {cells}".rstrip())
        if row.fix and row.ok is not True:
            lines.append(f"  {margin}  fix: {row.fix}")
    return "\n".join(lines)


# --------------------------------------------------------------------------- each host


def judge(facts: Sequence[HostFacts | None]) -> list[Row]:
    """What hosts say of themselves; ``None`` for one that does not answer."""
    known = [said for said in facts if said is not None]

    def row(name: str, tell: Callable[[HostFacts], str], poor: bool = False, fix: str = "") -> Row:
        cells = tuple("" if said is None else tell(said) for said in facts)
        return Row(name, cells, None if poor else True, fix)

    names = dict.fromkeys(name for said in known for name in said.versions)
    idle = [said.gpu_platform for said in known if said.gpus and not said.gpu_plugin]
    plugin = INSTALL.get(idle[0], INSTALL["cuda"]) if idle else ""
    small = any((said.free_nbytes or LITTLE_NBYTES) < LITTLE_NBYTES for said in known)
    tight = any((said.shm_free_nbytes or 0) < LITTLE_SHM_NBYTES for said in known)
    return [
        *(
            judge_versions(name, [said.versions.get(name, "") if said else None for said in facts])
            for name in names
        ),
        row("address", lambda said: said.address),
        row("devices", _devices, bool(idle), f"the GPUs need JAX's plugin: {plugin}"),
        row("free memory", lambda said: _size(said.free_nbytes), small,
            "use fewer ranks there, or end other programs"),
        row("/dev/shm", lambda said: _size(said.shm_free_nbytes), tight,
            "in a container: docker run --shm-size=1g; otherwise remove old files from /dev/shm"),
    ]  # fmt: skip


def judge_versions(name: str, versions: Sequence[str | None]) -> Row:
    """Whether a package has the same version on all hosts, and one that clusters work with."""
    title = "Python" if name == "python" else name
    cells = tuple("" if v is None else v or "none" for v in versions)
    found = [v for v in versions if v is not None]
    oldest, newest = OLDEST.get(name, ""), NEWEST_TRIED.get(name, "")
    if any(release(v) < release(oldest) for v in found):
        what = "a newer Python" if name == "python" else f'pip install -U "{name}>={oldest}"'
        return Row(title, cells, False, f"{title} {oldest} or newer is needed: {what}")
    # Python's patch level may differ.
    if len({v.rpartition(".")[0] if name == "python" else v for v in found}) > 1:
        fix = "install the same on all hosts, or name another Python there: --python PATH"
        return Row(title, cells, False, fix)
    if newest and any(release(v)[:2] > release(newest) for v in found):
        tried = TRIED_JAX if name == "jax" else f"use Python {newest}"
        return Row(title, cells, None, f"{newest} is the newest tried; if it fails: {tried}")
    return Row(title, cells)


def _devices(said: HostFacts) -> str:
    found = [plural(said.tpu_chips, "TPU chip")] if said.tpu_chips else []
    found += [plural(len(said.gpus), "GPU")] if said.gpus else []
    return ", ".join([*found, plural(said.cpus, "CPU core")])


def _size(nbytes: int | None) -> str:
    return "not known" if nbytes is None else f"{nbytes / 2**30:,.1f} GiB"


# --------------------------------------------------------------------------- this machine


def check_private_names(environ: Mapping[str, str]) -> Row:
    """Whether a new process can import jax, and finds the private names that jaxcluster uses."""
    argv = [sys.executable, "-P", "-m", "jaxcluster.engine.private.self_test"]
    ask = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60.0}
    told = "are where they are expected"
    ok: bool | None = True
    try:
        done = subprocess.run(argv, check=False, env=findable(environ, os.getcwd()), **ask)  # type: ignore[call-overload]
        if done.returncode or not done.stdout:
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            told, ok = f"jax can't be imported: {why}", False
        elif missing := json.loads(done.stdout.splitlines()[-1]):
            lost = "; ".join(f"{what} ({cost})" for what, cost in missing.items())
            told, ok = f"moved in this jax: {lost}", None
    except (OSError, subprocess.TimeoutExpired) as error:
        told, ok = f"{type(error).__name__}: {error}", False
    return Row("jax's private names", (told,), ok, f"use a jax that was tried: {TRIED_JAX}")


def check_proxies(environ: Mapping[str, str]) -> Row:
    """Whether gRPC would ask an HTTP proxy for the coordinator's loopback traffic.

    ``jax.distributed.initialize`` hangs then (tried with jaxlib 0.10.2). gRPC reads the lower-case
    names only, ``no_grpc_proxy`` before ``no_proxy``, and there addresses and networks, but not
    ``localhost`` or ``*`` for 127.0.0.1.
    """
    names = [name for name in ("grpc_proxy", "https_proxy", "http_proxy") if environ.get(name)]
    exempt = "no_grpc_proxy" if environ.get("no_grpc_proxy") else "no_proxy"
    entries = [entry.strip() for entry in environ.get(exempt, "").split(",") if entry.strip()]
    if not names or any(_covers_loopback(entry) for entry in entries):
        return Row("proxies", (f"{exempt} exempts 127.0.0.1" if names else "none that gRPC uses",))
    told = f"{', '.join(names)} set, and {exempt} does not exempt 127.0.0.1: a start would hang"
    return Row("proxies", (told,), False, f"%env {exempt}={','.join([*entries, '127.0.0.1'])}")


def _covers_loopback(entry: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address("127.0.0.1") in ipaddress.ip_network(entry, strict=False)
    return False


def check_lab_extension() -> Row:
    """Whether JupyterLab has this version's extension; a build without Node leaves it out."""
    from jupyter_core.paths import jupyter_path

    name, own = "Lab extension", installed_version("jaxcluster")
    if installed_version("jupyterlab") is None:
        return Row(name, ("not needed: JupyterLab is not installed here",))
    for folder in jupyter_path("labextensions"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            package = Path(folder, "jaxcluster-labextension", "package.json")
            found = str(json.loads(package.read_text())["version"])
            if own is None or release(found) == release(own):
                return Row(name, (found,))
            return Row(name, (f"is {found}, and jaxcluster is {own}",), None, f"{LAB_FIX}=={own}")
    told = "is not installed: JupyterLab has no sidebar, badges and buttons"
    return Row(name, (told,), None, f"{LAB_FIX}   (from a checkout: with Node 20)")


# --------------------------------------------------------------------------- hosts


def look(places: Sequence[Host]) -> str:
    """Ask all hosts, and show a column for each. Takes 10 s at most if one does not answer."""
    facts = [_ask(place, requests.Facts()) for place in places]
    rows = [*judge(facts), _ways(places, facts)]
    if any(place.ranks for place in places):
        ranks = [name_ranks(place.ranks) if place.ranks else "none" for place in places]
        rows = [Row("ranks", tuple(ranks)), *rows]
    why = [p.lost or p.condition.lstrip(": ") or "does not answer" for p in places]
    silent = [f"! {p.name}: {why[n]}" for n, p in enumerate(places) if facts[n] is None]
    return "\n".join([render(rows, [place.name for place in places]), *silent])


def _ask(place: Host, request: Operation[R]) -> R | None:
    if not place.lost:
        with contextlib.suppress(LaunchError):
            return place.ask(request, ASK_S)
    return None


def _ways(places: Sequence[Host], facts: Sequence[HostFacts | None]) -> Row:
    """Whether each host reaches each other one: JAX's ranks talk at ports of any number."""
    alive = {p: said.address for p, said in zip(places, facts, strict=True) if said is not None}
    doors = {p: port for p, address in alive.items() if (port := _ask(p, requests.Listen(address)))}
    to = [(alive[place], port) for place, port in doors.items()]
    cells, cut = [], []
    for place in places:
        whys = _ask(place, requests.Ways(to)) if place in alive else None
        told = zip(doors, whys or (), strict=False)
        deaf = {other.name: why for other, why in told if why and other != place}
        cut += [f"{place.name} to {name}" for name in deaf]
        all_of = "" if whys is None else "all others" if len(doors) > 1 else "no other"
        cells.append(", ".join(f"not {name} ({why})" for name, why in deaf.items()) or all_of)
    for place in alive:
        _ask(place, requests.Listen(""))
    fix = f"allow TCP on all ports between the hosts ({', '.join(cut)}), as JAX needs it"
    return Row("reaches", tuple(cells), not cut, fix)
