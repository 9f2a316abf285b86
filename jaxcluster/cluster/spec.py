"""What a user asks for, as the spec of a cluster: checked before anything is started."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from jaxcluster import profiles, wire
from jaxcluster.cluster.names import free_name
from jaxcluster.errors import UsageError
from jaxcluster.host.facts import gpu_platform, gpu_plugin_installed, host_gpus, host_tpu_chips
from jaxcluster.launchers import inside
from jaxcluster.launchers.options import launcher_of
from jaxcluster.plan import placement
from jaxcluster.plan.spec import (
    ALL,
    GPU_PLATFORMS,
    check_seconds,
    check_spec,
    check_wishes,
    is_count,
    platform_in,
)
from jaxcluster.profiles import Profile
from jaxcluster.records import registry


def make_spec(
    num_processes: int | None = None,
    *,
    profile: str | Profile | None = None,
    devices_per_process: int | str | None = None,
    platform: str | None = None,
    launcher: str | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    detach: bool | None = None,
    local_device_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
    coordinator_address: str | None = None,
    coordinator_bind_address: str | None = None,
    initialization_timeout: int | None = None,
    heartbeat_timeout_seconds: int | None = None,
    **options: str | int | Sequence[str],
) -> wire.ClusterSpec:
    """A checked ClusterSpec, with what was left open chosen from what this machine has.

    What other hosts are to decide stays open: ``num_processes`` is 0 and ``platform`` is "" then.
    None is not given: it is the profile's, or the default (``timeout_s=60``,
    ``heartbeat_timeout_seconds=100``).

    Args:
      devices_per_process: "all" stands for all of a host, shared out evenly among its ranks.
      launcher: None means this machine; "auto" the allocation that this process runs in, else this
        machine.
      profile: options that stand in a ``jaxcluster.toml`` under this name; those that are given
        beside it count before them. None takes none: a default profile is for what is typed.
      **options: the launcher's own, as on its command line: ``hosts="h1:2,h2:2"``.

    Raises:
      UsageError: an argument is out of its range, or there is no such launcher, or no such profile.
    """
    given = {**locals(), **options}
    del given["options"], given["profile"]
    if isinstance(profile, str):
        profile = profiles.load().named(profile)
    if profile is None:
        return _make(**{what: value for what, value in given.items() if value is not None})
    try:
        made = _make(**profile.under(given))
    except UsageError as error:
        raise profile.blamed(error) from None
    return dataclasses.replace(made, profile=profile.name)


def _make(
    num_processes: int | None = None,
    devices_per_process: int | str | None = None,
    platform: str | None = None,
    launcher: str | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
    detach: bool = False,
    local_device_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
    coordinator_address: str | None = None,
    coordinator_bind_address: str | None = None,
    initialization_timeout: int | None = None,
    heartbeat_timeout_seconds: int = 100,
    **options: str | int | Sequence[str],
) -> wire.ClusterSpec:
    each = None if devices_per_process == "all" else devices_per_process
    for what, value in (("-n", num_processes), ("--devices-per-process", each)):
        if value is not None and not is_count(value):
            raise UsageError(f"{what} must be at least 1, not {value!r}.", "%jaxcluster start -n 4")
    each_gets = ALL if isinstance(devices_per_process, str) else devices_per_process
    typed = {
        k: v if isinstance(v, str) else [*v] if isinstance(v, Sequence) else str(v)
        for k, v in options.items()
        if v is not False  # a switch that is off
    }
    any_launcher, launcher = launcher is None, launcher or "local"
    if launcher == "auto":
        launcher, typed, num_processes = _taken(typed, num_processes)
    else:
        launcher_of(launcher, dict(typed), num_processes)
    wanted = platform or platform_in(env or {})
    if launcher == "local":
        environ = {**os.environ, **(env or {})}
        gpus, chips = host_gpus(environ), host_tpu_chips()
        plugin = gpu_plugin_installed()
        wanted = placement.choose_platform(wanted, gpus, chips, plugin, gpu_platform())
        if num_processes is None:
            num_processes = placement.default_num_processes(
                gpus if wanted in GPU_PLATFORMS else [],
                chips if wanted == "tpu" else 0,
                each_gets,
            )
    elif launcher == "tpu":  # a slice whose chips can't be seen is no reason for CPU
        wanted = wanted or "tpu"
    check_seconds("--timeout", timeout_s, "%jaxcluster start --timeout 120")
    ids: list[list[int]] | None = None
    if local_device_ids is not None:
        nested = [list(i) if isinstance(i, Sequence) else [i] for i in local_device_ids]
        flat = all(isinstance(i, int) for i in local_device_ids)
        # Without a number of ranks the hosts decide how many there are: see ``placing.place``.
        ids = [[i[0] for i in nested]] * (num_processes or 1) if flat else nested
        if num_processes is not None and len(ids) != num_processes:
            raise UsageError(
                f"local_device_ids names devices for {len(ids)} ranks; there are {num_processes}."
            )
    spec = wire.ClusterSpec(
        name=registry.check_name(name) if name is not None else free_name(),
        any_name=name is None,
        any_launcher=any_launcher,
        num_processes=num_processes or 0,
        devices_per_process=each_gets,
        platform=wanted or "",
        launcher=launcher,
        options=typed,
        env=dict(env or {}),
        timeout_s=timeout_s,
        detach=detach,
        local_device_ids=ids,
        coordinator_address=coordinator_address,
        coordinator_bind_address=coordinator_bind_address,
        initialization_timeout=initialization_timeout,
        heartbeat_timeout_seconds=heartbeat_timeout_seconds,
    )
    if spec.num_processes and spec.platform:  # else when the hosts have decided
        check_spec(spec)
        check_wishes(spec)
    return spec


def _taken(
    typed: dict[str, str | list[str]], num_processes: int | None
) -> tuple[str, dict[str, str | list[str]], int | None]:
    """(launcher, its options, number of ranks) for the allocation that this process runs in.

    Raises:
      UsageError: it can't be taken, or what was typed is not for it.
    """
    found = inside.find()
    if found is None:
        found = inside.Inside("no allocation", "local")
    elif found.obstacle:
        raise UsageError(
            f"--launcher auto: this notebook runs in {found.what}, and {found.obstacle}.",
            "On this machine alone: --launcher local",
        )
    try:
        launcher_of(found.launcher, {**found.options, **typed}, num_processes)
    except UsageError as error:
        told = f"--launcher auto: this notebook runs in {found.what}. {error.message}"
        raise UsageError(told, error.hint) from None
    n = found.num_processes if num_processes is None else num_processes
    return found.launcher, {**found.options, **typed}, n
