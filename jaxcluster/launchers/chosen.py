"""The launcher that a user has asked for, made of the options that were given."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxcluster.errors import UsageError
from jaxcluster.launchers.base import Launcher
from jaxcluster.launchers.hosts import Host, parse_hosts, read_hostfile
from jaxcluster.launchers.kube.launcher import Kubernetes, seconds_of
from jaxcluster.launchers.kube.manifests import Pod
from jaxcluster.launchers.mpi import MPI
from jaxcluster.launchers.slurm import Slurm
from jaxcluster.launchers.ssh import SSH
from jaxcluster.launchers.through_ipp import ThroughIPP
from jaxcluster.launchers.tpu import TPU
from jaxcluster.launchers.wishes import wish_of
from jaxcluster.options.kinds import COUNT, SWITCH, TEXTS
from jaxcluster.options.table import EXAMPLES, OF_LAUNCHERS, Option, check_launcher


def launcher_of(
    name: str | None, typed: Mapping[str, Any], num_processes: int | None = None
) -> tuple[Launcher | None, str]:
    """(the launcher that was asked for, the hosts' Python or nothing); None stands for local.

    Args:
      name: what stands behind ``--launcher``; None where it was not typed.
      typed: its own options by their names, as text.
      num_processes: ``-n``.

    Raises:
      UsageError: there is no such launcher, it does not know an option, or a value is wrong.
    """
    kind, rest = check_launcher(name or "local", typed)
    given = {name: _read(OF_LAUNCHERS[name], value) for name, value in typed.items()}
    # No other machine's path to a Python means anything in an image.
    python = given.pop("python", "python3" if kind == "kubernetes" else "")
    wish_of(given)
    given = {name: value for name, value in given.items() if name not in ("sync", "no_sync")}
    match kind:
        case "ssh":
            made: Launcher = SSH(_hosts(given, kind), num_processes, **_login(given))
        case "tpu":
            made = _tpu(given, num_processes)
        case "slurm":
            made = Slurm(num_processes, **_named(given, sbatch="extra"))
        case "mpi":
            hosts = _hosts(given, kind)
            made = MPI(hosts, num_processes, **_named(given, mpi_args="extra"))
        case "kubernetes":
            made = _kubernetes(given, num_processes)
        case "ipp":
            names = {"ipp_profile": "profile", "nodes": "agents", "ntasks_per_node": "ranks_each"}
            made = ThroughIPP(rest, num_processes=num_processes, **_named(given, **names))
        case _:
            return None, ""
    return made, python


def _read(option: Option, value: Any) -> Any:
    """The value of one option.

    Raises:
      UsageError: it is not valid.
    """
    if option.kind is TEXTS:
        value = (value,) if isinstance(value, str) else tuple(map(str, value))
        option.check(value)
        return value
    if option.kind is SWITCH:
        return bool(value)
    value = str(value)
    if option.metavar and not value.strip() and option.name != "sync":
        raise UsageError(f"{option.flag} has no value.", f"{option.flag} {option.metavar}")
    if option.kind is COUNT:
        with contextlib.suppress(ValueError):  # else it is refused as it was typed
            value = int(value)
    option.check(value)
    if option.name in ("ssh", "mpi_args"):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise UsageError(f"{option.flag}: {error}.", "Close the quotes.") from None
    # No shell stands between us and the launcher's command.
    is_path = option.name in ("ssh_config", "mpiexec", "kubeconfig", "pod_template")
    return os.path.expanduser(value) if is_path else value


def _named(given: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """The options by the names that a launcher has for them, which are their own but for these."""
    return {names.get(name, name): value for name, value in given.items()}


def _hosts(given: dict[str, Any], kind: str) -> tuple[Host, ...]:
    """Those that are named; taken out of ``given``."""
    hosts, file = given.pop("hosts", ""), given.pop("hostfile", "")
    if hosts and file:
        raise UsageError("--hosts and --hostfile can't be used together.", "Leave out one of them.")
    if file:
        return read_hostfile(Path(file))
    if not hosts and kind == "ssh":
        raise UsageError("--launcher ssh needs hosts.", f"For example: {EXAMPLES['ssh']}")
    return parse_hosts(hosts) if hosts else ()


def _tpu(given: dict[str, Any], num_processes: int | None) -> Launcher:
    hosts, name = _hosts(given, "tpu"), given.get("tpu", "")
    if hosts and name:
        raise UsageError("--tpu and --hosts can't be used together.", "Leave out one of them.")
    for one in ("zone", "project", "internal_ip"):
        if given.get(one) and not name:
            raise UsageError(f"{OF_LAUNCHERS[one].flag} goes with --tpu NAME.", EXAMPLES["tpu"])
    return TPU(hosts, num_processes, **_login(given))


def _login(given: Mapping[str, Any]) -> dict[str, Any]:
    """How ssh is to log in: what ``SSH`` and ``TPU`` have in common."""
    if (port := given.get("port", 1)) > 65535:
        raise UsageError(f"--port: {port} is not a port from 1 to 65535.", "--port 2222")
    return _named(given, ssh_config="config", ssh_option="options")


def _kubernetes(given: dict[str, Any], num_processes: int | None) -> Launcher:
    for name in ("resource", "label"):
        if name in given:
            given[name] = tuple(tuple(one.split("=", 1)) for one in given[name])
    if "time" in given:
        given["time"] = seconds_of(given["time"])
    of_launcher = {"namespace", "kubeconfig", "context", "direct", "pod_template", "pods"}
    names = {"ranks_per_pod": "ranks_each", "time": "deadline_s"}
    own = {name: given.pop(name) for name in (*of_launcher, *names) if name in given}
    pod = _named(
        given, mem="memory", resource="resources", tpu_type="tpu", tpu_topology="topology",
        tpu_chips="chips", label="labels",
    )  # fmt: skip
    return Kubernetes(num_processes, pod=Pod(**pod), **_named(own, **names))
