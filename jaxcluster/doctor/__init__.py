"""What ``%jaxcluster doctor`` finds: versions, ports, names, devices, and how to fix them.

Every check is a function from what was found to one ``Check``; ``run_checks`` does the finding.
jax is never imported here: its version comes from the package metadata, and a process of its own
looks for its private names.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxcluster.agent.report import SHM, installed_version
from jaxcluster.errors import UsageError
from jaxcluster.host.facts import gpu_platform, gpu_plugin_installed, host_gpus, host_tpu_chips
from jaxcluster.host.free_space import free_nbytes
from jaxcluster.options.known import known
from jaxcluster.plan.spec import INSTALL
from jaxcluster.plan.versions import (
    NEWEST_TRIED_JAX,
    OLDEST_JAX,
    TRIED_JAX,
    is_newer_than_tried,
    release,
)
from jaxcluster.supervision.starting import findable
from jaxcluster.text import plural

MIN_SHM_NBYTES = 64 * 2**20

# Package, oldest version that works, and whether a cluster needs it at all; jax is looked at apart.
PACKAGES = (
    ("jaxlib", OLDEST_JAX, True),
    ("numpy", "2", True),
    ("ipyparallel", "9", True),
    ("ipykernel", "6.29", True),
    ("jupyterlab", "4.2", False),
)


@dataclass(frozen=True)
class Check:
    """One thing looked at; ``ok`` is ``None`` for a warning, and ``fix`` says what to do."""

    name: str
    ok: bool | None
    detail: str
    fix: str = ""


def run_checks(runtime_dir: Path, environ: Mapping[str, str] | None = None) -> list[Check]:
    """All checks on this machine, in the order to show them; about as long as jax's import.

    Args:
      runtime_dir: where clusters keep their connection files; it need not exist yet.
      environ: the environment that a cluster would inherit; this process's own by default.
    """
    environ = os.environ if environ is None else environ
    return [
        check_python(sys.version_info[:3]),
        check_jax(installed_version),
        *(check_package(*package, installed_version) for package in PACKAGES),
        check_jaxlib_match(installed_version("jax"), installed_version("jaxlib")),
        check_private_names(*ask_private_names(environ)),
        check_loopback(_reach_loopback),
        check_hostname(socket.gethostname(), _resolve),
        check_proxies(environ),
        check_devices(
            host_gpus(environ),
            host_tpu_chips(),
            len(os.sched_getaffinity(0)),
            gpu_plugin_installed(),
            gpu_platform(),
        ),
        check_runtime_dir(runtime_dir),
        check_shared_memory(free_nbytes(SHM) if os.path.isdir(SHM) else None),
        check_fork(sys.platform == "linux" and hasattr(os, "fork")),
        check_launchers(known().broken),
        check_lab_extension(
            installed_version("jupyterlab"), _lab_extension(), installed_version("jaxcluster")
        ),
    ]


def render(checks: Sequence[Check]) -> str:
    """The checks as plain text: ✓ good, ! a warning, ✗ to be fixed, with the fix below."""
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        mark = {True: "✓", None: "!", False: "✗"}[check.ok]
        lines.append(f"{mark} {check.name.ljust(width)}  {check.detail}")
        if check.fix and check.ok is not True:
            lines.append(f"  {' ' * width}  fix: {check.fix}")
    return "\n".join(lines)


def check_launchers(broken: Mapping[str, UsageError]) -> Check:
    """Whether all launchers that packages of this Python add can be used."""
    if broken:
        told = " ".join(error.message for error in broken.values())
        return Check("launchers", None, told, next(iter(broken.values())).hint)
    return Check("launchers", True, ", ".join(known().launchers))


# --------------------------------------------------------------------------- versions


def check_python(version: tuple[int, ...]) -> Check:
    """Python 3.11 to 3.14; a newer one is a warning, since it may work."""
    text = ".".join(map(str, version))
    if version < (3, 11):
        return Check("Python", False, f"{text} is too old", "install Python 3.11 to 3.14")
    if version >= (3, 15):
        return Check("Python", None, f"{text} is newer than what was tried", "use Python 3.14")
    return Check("Python", True, text)


def check_package(
    name: str, minimum: str, needed: bool, version_of: Callable[[str], str | None]
) -> Check:
    """Whether a package is installed and not older than ``minimum`` (``""``: any version)."""
    version = version_of(name)
    wanted = f"{name}>={minimum}" if minimum else name
    fix = f'pip install "{wanted}"'
    if version is None:
        if needed:
            return Check(name, False, "is not installed", fix)
        return Check(name, None, "is not installed; needed only for its own interface", fix)
    if minimum and release(version) < release(minimum):
        return Check(name, False if needed else None, f"{version} is older than {minimum}", fix)
    return Check(name, True, version)


def check_jax(version_of: Callable[[str], str | None]) -> Check:
    """Whether clusters start with this jax; one newer than what was tried is a warning."""
    check = check_package("jax", OLDEST_JAX, True, version_of)
    version = version_of("jax")
    if check.ok and version and is_newer_than_tried(version):
        newer = f"{version} is newer than {NEWEST_TRIED_JAX}, the newest that was tried"
        return Check("jax", None, newer, f"if something fails: {TRIED_JAX}")
    return check


def check_jaxlib_match(jax: str | None, jaxlib: str | None) -> Check:
    """Whether jax will take this jaxlib.

    jax refuses to import a jaxlib that is newer than itself, and one that is older than a minimum
    which moves with nearly every release (``jax/_src/lib/__init__.py``).
    """
    name = "jax and jaxlib"
    if jax is None or jaxlib is None:
        return Check(name, False, "are not both installed", "pip install -U jax jaxlib")
    pair, fix = f"jax {jax}, jaxlib {jaxlib}", f'pip install "jax=={jax}" -U jaxlib'
    if release(jaxlib) > release(jax):
        return Check(name, False, f"{pair}: jax refuses a newer jaxlib", fix)
    if release(jaxlib)[:2] != release(jax)[:2]:
        return Check(name, None, f"{pair}: jax may refuse a jaxlib that old", fix)
    return Check(name, True, "match")


def check_private_names(missing: Mapping[str, str] | str, seconds: float = 0.0) -> Check:
    """What does not work because this jax keeps private names elsewhere.

    Args:
      missing: what ``engine.private`` did not find, each with what happens without it; or why
        it could not be asked.
      seconds: how long that took.
    """
    name = "jax's private names"
    if isinstance(missing, str):
        return Check(name, False, f"could not be checked: {missing}")
    asked = f"checked in {seconds:.1f} s, by a process that imported jax"
    if not missing:
        return Check(name, True, f"are where they are expected ({asked})")
    lost = "; ".join(f"{what} ({cost})" for what, cost in missing.items())
    return Check(
        name,
        None,
        f"moved in this jax: {lost} ({asked})",
        f"use a jax that was tried: {TRIED_JAX}",
    )


def ask_private_names(environ: Mapping[str, str]) -> tuple[Mapping[str, str] | str, float]:
    """Which of jax's private names a process of its own does not find, and its seconds."""
    started = time.perf_counter()
    argv = [sys.executable, "-P", "-m", "jaxcluster.engine.private.self_test"]
    try:
        done = subprocess.run(
            argv,
            check=False,
            env=findable(environ, os.getcwd()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60.0,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}", time.perf_counter() - started
    seconds = time.perf_counter() - started
    try:
        missing: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return last[0], seconds
    return missing, seconds


# --------------------------------------------------------------------------- network


def check_loopback(reach: Callable[[], int]) -> Check:
    """Whether ranks can meet on 127.0.0.1; ``reach`` connects to a port there, and returns it."""
    try:
        port = reach()
    except OSError as error:
        return Check(
            "loopback",
            False,
            f"no port on 127.0.0.1 can be reached: {error}",
            "bring the loopback interface up (ip link set lo up), or allow local sockets",
        )
    return Check("loopback", True, f"a port on 127.0.0.1 can be reached ({port})")


def check_hostname(hostname: str, resolve: Callable[[str], Sequence[str]]) -> Check:
    """Where this host's own name leads.

    gloo listens on what the host name resolves to, so a name that leads nowhere, or to Debian's
    127.0.1.1, breaks plain multi-process JAX. jaxcluster gives each rank its address, so here it
    is a warning and nothing needs fixing.
    """
    aside = "jaxcluster sets the addresses itself, but plain JAX scripts would fail here"
    fix = f"not needed for jaxcluster; for plain JAX map {hostname} to a real address in /etc/hosts"
    try:
        addresses = list(dict.fromkeys(resolve(hostname)))
    except OSError as error:
        return Check("hostname", None, f"{hostname} does not resolve ({error}): {aside}", fix)
    shown = f"{hostname} is {', '.join(addresses)}"
    if "127.0.1.1" in addresses:
        return Check("hostname", None, f"{shown}: {aside}", fix)
    return Check("hostname", True, shown)


def check_proxies(environ: Mapping[str, str]) -> Check:
    """Whether gRPC would send the coordinator's loopback traffic to an HTTP proxy.

    Tried with jaxlib 0.10.2: with ``http_proxy``, ``https_proxy`` or ``grpc_proxy`` set,
    ``jax.distributed.initialize`` asks the proxy for 127.0.0.1 and hangs. It reads the lower-case
    names only, ``no_grpc_proxy`` before ``no_proxy``, and there addresses and networks, but not
    ``localhost`` or ``*`` for 127.0.0.1.
    """
    names = [name for name in ("grpc_proxy", "https_proxy", "http_proxy") if environ.get(name)]
    if not names:
        return Check("proxies", True, "none that gRPC uses")
    exempt = "no_grpc_proxy" if environ.get("no_grpc_proxy") else "no_proxy"
    entries = [entry.strip() for entry in environ.get(exempt, "").split(",") if entry.strip()]
    if any(_covers_loopback(entry) for entry in entries):
        return Check("proxies", True, f"{', '.join(names)} set, {exempt} exempts 127.0.0.1")
    return Check(
        "proxies",
        False,
        f"{', '.join(names)} set and {exempt} does not exempt 127.0.0.1: "
        "jax.distributed.initialize would ask the proxy and hang",
        f"%env {exempt}={','.join([*entries, '127.0.0.1'])}",
    )


def _covers_loopback(entry: str) -> bool:
    try:
        return ipaddress.ip_address("127.0.0.1") in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _reach_loopback() -> int:
    """A port can be bound even where the interface is down, so it is connected to as well."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        socket.create_connection(address, timeout=5).close()
        port: int = address[1]
        return port


def _resolve(hostname: str) -> list[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(hostname, None)]


# --------------------------------------------------------------------------- machine


def check_devices(
    gpus: Sequence[str], tpu_chips: int, cpus: int, gpu_plugin: bool, kind: str = "cuda"
) -> Check:
    """What JAX will find here; GPUs without JAX's plugin for them are a warning."""
    found = [plural(tpu_chips, "TPU chip")] if tpu_chips else []
    found += [f"{plural(len(gpus), 'GPU')} ({','.join(gpus)})"] if gpus else []
    found += [plural(cpus, "CPU core")]
    detail = ", ".join(found)
    if gpus and not gpu_plugin:
        return Check(
            "devices",
            None,
            f"{detail}; jax has no {kind.upper()} plugin, so the GPUs stay unused",
            f"{INSTALL[kind]}   (or cuda13, with a driver that supports it)"
            if kind == "cuda"
            else INSTALL[kind],
        )
    return Check("devices", True, detail)


def check_runtime_dir(path: Path) -> Check:
    """Whether connection files, which hold keys, can be written where only this user reads them."""
    name = "runtime directory"
    if not path.exists():
        parent = next(parent for parent in path.absolute().parents if parent.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            return Check(name, True, f"{path} will be made by the first start")
        return Check(name, False, f"{path} can't be made: {parent} is not writable")
    found = path.stat()
    if not path.is_dir():
        return Check(name, False, f"{path} is not a directory", f"rm {path}")
    if found.st_uid != os.getuid():
        owner = f"{path} belongs to user id {found.st_uid}"
        return Check(name, False, owner, f"its owner can remove it: rm -r {path}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        mode = f"{path} is open to other users ({stat.filemode(found.st_mode)})"
        return Check(name, False, mode, f"chmod 700 {path}")
    if not os.access(path, os.W_OK | os.X_OK):
        return Check(name, False, f"{path} is not writable", f"chmod 700 {path}")
    return Check(name, True, f"{path} is writable and private")


def check_shared_memory(free_nbytes: int | None) -> Check:
    """Whether /dev/shm has room for arrays on their way; ``None`` means that there is none."""
    name = "shared memory"
    if free_nbytes is None:
        return Check(name, None, "there is no /dev/shm, so pushes and pulls of arrays are slower")
    detail = f"{free_nbytes / 2**20:,.0f} MB free in /dev/shm"
    if free_nbytes < MIN_SHM_NBYTES:
        fix = "in a container: docker run --shm-size=1g; otherwise remove old files from /dev/shm"
        return Check(name, None, f"{detail}: too little for large arrays", fix)
    return Check(name, True, detail)


def check_lab_extension(jupyterlab: str | None, found: str | None, version: str | None) -> Check:
    """Whether JupyterLab has its part of jaxcluster, which a build without Node leaves out.

    Args:
      jupyterlab: its version here; None where it isn't installed, and needs no extension.
      found: the version of the extension that it finds, if any.
      version: jaxcluster's.
    """
    name = "Lab extension"
    if jupyterlab is None:
        return Check(name, True, "not needed: JupyterLab is not installed here")
    if found is None:
        return Check(
            name,
            None,
            "is not installed: JupyterLab has no sidebar, badges and buttons. It is left out where "
            "jaxcluster is built from a checkout without Node",
            "pip install --force-reinstall --no-deps jaxcluster   (from a checkout: with Node 20)",
        )
    if version is not None and release(found) != release(version):
        why = f"is {found}, and jaxcluster is {version}"
        fix = f'pip install --force-reinstall --no-deps "jaxcluster=={version}"'
        return Check(name, None, why, fix)
    return Check(name, True, found)


def check_fork(available: bool) -> Check:
    """Whether ranks can be forked from a process that has imported jax already (Linux)."""
    if available:
        return Check("fast start", True, "ranks are forked")
    return Check("fast start", None, "no fork here: ranks start as plain processes, slower")


def _lab_extension() -> str | None:
    """The version of the Lab extension that a JupyterLab of this environment finds."""
    from jupyter_core.paths import jupyter_path

    for folder in jupyter_path("labextensions"):
        package = Path(folder, "jaxcluster-labextension", "package.json")
        with contextlib.suppress(OSError, ValueError, KeyError):
            return str(json.loads(package.read_text())["version"])
    return None
