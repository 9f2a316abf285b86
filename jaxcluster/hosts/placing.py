"""Which hosts get which ranks, from what their agents say. Pure."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from jaxcluster import wire
from jaxcluster.errors import LaunchError, UsageError
from jaxcluster.host.facts import HostFacts
from jaxcluster.hosts.fleet import Host
from jaxcluster.launchers.commands import StartedAgent
from jaxcluster.plan import placement
from jaxcluster.plan.shares import ranks_by_host
from jaxcluster.plan.spec import GPU_PLATFORMS, INSTALL, check_spec, platform_in
from jaxcluster.text import format_table, plural


def in_order(
    started: Sequence[StartedAgent], names: Sequence[str]
) -> list[tuple[str, StartedAgent]]:
    """(name, agent) in the order of ranks: the user's, else the launcher's."""
    if names and all(agent.host is not None for agent in started):
        return [(names[agent.host or 0], agent) for agent in started]
    numbered = sorted(
        started,
        key=lambda agent: (agent.said.number is None, agent.said.number or 0, agent.said.host),
    )
    return [(agent.said.host, agent) for agent in numbered]


def check_versions(started: Sequence[tuple[str, StartedAgent]]) -> None:
    """Refuse hosts that differ in what must be equal, before a rank is started.

    Raises:
      LaunchError: they do, or this process has another jaxcluster; with a table.
    """
    # Not imported by name: the package's own module names the notebook's side.
    rows = {"here": {"jaxcluster": sys.modules["jaxcluster"].__version__}}
    rows |= {name: dict(agent.said.versions) for name, agent in started}
    for versions in rows.values():
        if "python" in versions:  # whose patch level may differ
            versions["python"] = ".".join(versions["python"].split(".")[:2])
    names = dict.fromkeys(name for versions in rows.values() for name in versions)
    odd = [n for n in names if len({v[n] for v in rows.values() if n in v}) > 1]
    if odd:
        table = [[host, *(v.get(n, "") for n in odd)] for host, v in rows.items() if {*odd} & {*v}]
        raise LaunchError(
            f"The hosts have different versions of {', '.join(odd)}:\n"
            + "\n".join(format_table([["", *odd], *table])),
            "Install the same on all of them, or name another Python there: --python PATH",
        )


def place(
    spec: wire.ClusterSpec, hosts: Sequence[Host], counts: Sequence[int] | None
) -> wire.ClusterSpec:
    """The spec with what the hosts' devices decide; each host gets its ranks.

    Args:
      counts: how many ranks each host gets; None: its devices decide.

    Raises:
      UsageError: what was asked for does not fit the hosts.
    """
    facts = [one.facts for one in hosts]
    env = platform_in(spec.env)
    fitting = [
        env or placement.choose_platform(f.gpus, f.tpu_chips, f.gpu_plugin, f.gpu_platform)
        for f in facts
    ]
    platform = spec.platform or next((one for one in fitting if one != "cpu"), "cpu")
    is_plugin_missing = platform in GPU_PLATFORMS and not all(f.gpu_plugin for f in facts)
    if is_plugin_missing or (not spec.platform and {*fitting} != {platform}):
        told = "; ".join(f"{one.name}: {_devices(one.facts)}" for one in hosts)
        bare = [f.gpu_platform for f in facts if f.gpus and not f.gpu_plugin]
        how = f"On hosts without the plugin: {INSTALL[bare[0]]}   " if bare else ""
        raise UsageError(
            f"Not all hosts can use the platform {platform!r}: {told}.",
            f"{how}Or choose one for all: --platform cpu",
        )
    if counts is None:
        each, many = spec.devices_per_process, len(hosts)
        counts = [
            placement.default_num_processes(platform, f.gpus, f.tpu_chips, each, many)
            for f in facts
        ]
    for one, ranks in zip(hosts, ranks_by_host(counts), strict=True):
        one.ranks = ranks
    ids = spec.local_device_ids
    if ids is not None and len(ids) == 1:  # the same for each
        ids = ids * sum(counts)
    placed = dataclasses.replace(
        spec, num_processes=sum(counts), platform=platform, local_device_ids=ids
    )
    check_spec(placed, [one.name for one in hosts[1:]])
    return placed


def share_out(num_processes: int, shares: Sequence[int]) -> list[int]:
    """How many ranks each host gets where there are others than at the start.

    As many as its share of all; one at least, as long as there are enough. The rest goes to the
    first hosts.

    Args:
      shares: how many each had at the start.
    """
    counts = [int(at < num_processes) for at in range(len(shares))]
    for _ in range(num_processes - len(shares)):
        counts[max(range(len(shares)), key=lambda at: shares[at] / (counts[at] + 1))] += 1
    return counts


def _devices(facts: HostFacts) -> str:
    """A host's devices in words, and why there are no GPUs."""
    if facts.tpu_chips:
        return plural(facts.tpu_chips, "TPU chip")
    if not facts.gpus:
        return "CPU alone"
    without = "" if facts.gpu_plugin else f", and jax has no {facts.gpu_platform} plugin"
    return plural(len(facts.gpus), "GPU") + without
