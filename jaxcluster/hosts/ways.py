"""Whether hosts reach each other by TCP: JAX's ranks talk at ports of any number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcluster.errors import LaunchError
from jaxcluster.hosts.agent.client import answers
from jaxcluster.hosts.agent.requests import Listen, Ways
from jaxcluster.hosts.fleet import LOOPBACK, Host
from jaxcluster.ranks import name_hosts

ASK_S = 10.0


def try_ways(
    hosts: Sequence[Host],
    at: Mapping[Host, str],
    passed_over: tuple[type[Exception], ...] = (LaunchError,),
) -> tuple[dict[Host, int], dict[Host, dict[Host, tuple[str, str]]]]:
    """Have some hosts listen at these addresses, and all ``hosts`` try to reach them.

    Args:
      passed_over: see ``answers``.

    Returns:
      The ports of the hosts that listen. And for each host that answers, by listening host: its own
      address on the way there, and why there is no way, or "".
    """
    try:
        asked = [(host, host.begin(Listen(address))) for host, address in at.items()]
        ports = {host: port for host, (port, _) in answers(asked, ASK_S, passed_over).items()}
        to = [(at[host], port) for host, port in ports.items()]
        found = answers([(host, host.begin(Ways(to))) for host in hosts], ASK_S, passed_over)
    finally:
        for host in at:
            host.begin(Listen(""))
    return ports, {host: dict(zip(ports, ways, strict=True)) for host, (ways, _) in found.items()}


def own_addresses(hosts: Sequence[Host]) -> list[str]:
    """Each rank's own address on the way to rank 0; on one machine that of the loopback.

    Each host with ranks must reach every other: collectives use all ways in both directions.

    Raises:
      LaunchError: one does not, or can't say; else JAX would hang, or abort silently.
    """
    machines = {host.facts.host_key: host for host in reversed(hosts) if host.ranks}
    first, *others = machine = [host for host in hosts if host in machines.values()]
    own = {first: first.address if others else LOOPBACK}
    if others:
        found = _check(machine, {first: own[first]})
        own |= {host: found[host][first][0] for host in others}
        _check(machine, {host: own[host] for host in others})
    return [own[machines[host.facts.host_key]] for host in hosts for _ in host.ranks]


def _check(
    hosts: Sequence[Host], at: Mapping[Host, str]
) -> dict[Host, dict[Host, tuple[str, str]]]:
    ports, found = try_ways(hosts, at, ())
    for to, address in at.items():
        deaf = [h.name for h in hosts if h is not to and found[h][to][1]]
        if deaf:
            raise LaunchError(
                f"Host {to.name} (it listens at {address}, port {ports[to]}) can't be reached from "
                f"host{'s' if len(deaf) > 1 else ''} {name_hosts(deaf)}.",
                "JAX's processes connect to each other by TCP, on any port. Is there a firewall "
                "between these hosts, or does one of them have several networks?",
            )
    return found
