"""The spec of a cluster, made of a user's options and checked before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxcluster import wire
from jaxcluster.errors import UsageError
from jaxcluster.host.facts import gpu_platform, gpu_plugin_installed, host_gpus, host_tpu_chips
from jaxcluster.hosts.records import registry
from jaxcluster.launchers import base as launchers
from jaxcluster.launchers.base import launcher_of
from jaxcluster.options.known import known
from jaxcluster.options.table import COMMON, LOCAL, SWITCH, kind_of
from jaxcluster.plan import placement
from jaxcluster.plan.spec import ALL, check_spec, platform_in

FORCED_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
VERIFIES = "JAX_DISTRIBUTED_VERIFY_SECURE_CREDENTIALS"


def make_spec(num_processes: int | None = None, **options: Any) -> wire.ClusterSpec:
    """A checked ClusterSpec. Options that were left out are chosen from what this machine has.

    If other hosts decide, ``num_processes`` stays 0, and ``platform`` stays "".

    Args:
      **options: those of every start, as ``options.table`` names them (``timeout_s``, ``env``).
        Others are a launcher's, as on its command line (``hosts="h1:2,h2:2"``). None means
        left out. The default launcher is this machine. "auto" takes this process's allocation.

    Raises:
      UsageError: an argument is out of its range, or there is no such launcher or option.
    """
    options["num_processes"] = num_processes
    own, typed = dict[str, Any](), dict[str, str | bool | list[str]]()
    for name, given in options.items():
        if given is None:
            continue
        value, option = given, known().by_name.get(name)
        if option is not None and (name in COMMON or option.kind is SWITCH):
            value = option.value(given)
        if name in COMMON:
            own[name] = ALL if value == "all" and name == "devices_per_process" else value
        elif value is not False:  # a switch that is off
            typed[name] = _as_typed(name, value)
    launcher = own.get("launcher") or LOCAL
    if launcher == "auto":
        launcher = _taken(typed, num_processes)
    else:
        launcher_of(launcher, typed, num_processes)
    env = dict(own.get("env", {}))
    wanted = own.get("platform") or platform_in(env)
    if launcher == LOCAL:
        environ = {**os.environ, **env}
        gpus, chips = host_gpus(environ), host_tpu_chips()
        plugin = gpu_plugin_installed()
        wanted = wanted or placement.choose_platform(gpus, chips, plugin, gpu_platform())
        if num_processes is None:
            each = own.get("devices_per_process")
            num_processes = placement.default_num_processes(wanted, gpus, chips, each)
    else:
        wanted = wanted or known().launchers[kind_of(launcher)].platform
    environ = {**(os.environ if launcher == LOCAL else {}), **env}
    check_credentials(environ)
    forced = FORCED_DEVICES.search(environ.get("XLA_FLAGS", ""))
    if forced is not None and wanted == "cpu":
        own.setdefault("devices_per_process", int(forced[1]))
    if (ids := own.get("local_device_ids")) is not None:
        nested = [list(i) if isinstance(i, Sequence) else [i] for i in ids]
        flat = all(isinstance(i, int) for i in ids)
        # Without a number of ranks the hosts decide how many there are: see ``placing.place``.
        ids = [[i[0] for i in nested]] * (num_processes or 1) if flat else nested
    own |= {
        "name": registry.check_name(own.get("name", "main")),
        "any_name": "name" not in own,
        "num_processes": num_processes or 0,
        "platform": wanted or "",
        "launcher": launcher,
        "any_launcher": "launcher" not in own,
        "env": env,
        "local_device_ids": ids,
    }
    spec = wire.ClusterSpec(**own, options=typed)
    if spec.num_processes and spec.platform:  # else when the hosts have decided
        check_spec(spec)
    return spec


def check_credentials(environ: Mapping[str, str]) -> None:
    """Refuse settings of JAX's own encryption, with which ranks would wait for each other in vain.

    Raises:
      UsageError: one is set.
    """
    names = [n for n in environ if n.startswith("JAX_MTLS_") or n == VERIFIES]
    if names:
        raise UsageError(
            f"{', '.join(sorted(names))} is set, and jaxcluster passes no certificates to JAX.",
            f"Drop the --env, or: import os; del os.environ[{min(names)!r}]   See docs/security.md",
        )


def _as_typed(name: str, value: Any) -> str | bool | list[str]:
    """A launcher's option: text, a switch, or several texts."""
    if isinstance(value, str | bool):
        return value
    if name == "hosts" and isinstance(value, Sequence):
        return ",".join(map(str, value))
    return [*value] if isinstance(value, Sequence) else str(value)


def _taken(typed: Mapping[str, Any], num_processes: int | None) -> str:
    """The launcher for the allocation that this process runs in.

    Raises:
      UsageError: it can't be taken, or what was typed is not for it.
    """
    found = launchers.find()
    if found is None:
        found = launchers.Inside("no allocation", LOCAL)
    elif found.obstacle:
        raise UsageError(
            f"--launcher auto: this notebook runs in {found.what}, and {found.obstacle}.",
            "On this machine alone: --launcher local",
        )
    try:
        launcher_of(found.launcher, typed, num_processes)
    except UsageError as error:
        told = f"--launcher auto: this notebook runs in {found.what}. {error.message}"
        raise UsageError(told, error.hint) from None
    return found.launcher


def resized(spec: wire.ClusterSpec, num_processes: int) -> wire.ClusterSpec:
    """A cluster with another number of ranks. Pure.

    Raises:
      UsageError: there can't be so many.
    """
    if spec.platform == "tpu" and not spec.is_here:
        raise UsageError(
            "The hosts of a TPU slice belong together, so the number of their ranks is fixed.",
            "%jaxcluster stop, then start on another slice: --tpu NAME",
        )
    wanted = replace(spec, num_processes=known().by_name["num_processes"].value(num_processes))
    check_spec(wanted)
    return wanted
