"""How many ranks each of the hosts gets that were asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

from jaxcluster.errors import UsageError


class Asked(Protocol):
    """A host as it was asked for."""

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> int | None: ...


class Unnamed(NamedTuple):
    """A host that has no name yet: a node, a pod."""

    name: str
    ranks: int | None


def place_on(
    many: int, what: str, each: int | None, num_processes: int | None, example: str
) -> tuple[int, ...] | None:
    """As ``place``, for hosts that have no names yet (nodes, pods), with ``each`` so many ranks."""
    hosts = [Unnamed(f"{what} {i}", each) for i in range(many)]
    return place(hosts, num_processes, what, f"For example: {example}, without -n")


def place(
    hosts: Sequence[Asked], num_processes: int | None, what: str = "host", hint: str = ""
) -> tuple[int, ...] | None:
    """How many ranks each host gets; None where the hosts' own devices are to decide it.

    Raises:
      UsageError: the hosts' numbers and ``-n`` don't fit each other.
    """
    given = [host.ranks for host in hosts if host.ranks is not None]
    if len(given) == len(hosts):
        if num_processes not in (None, sum(given)):
            raise UsageError(
                f"-n {num_processes} does not match the {what}s' ranks, {sum(given)} in all.",
                hint or "Leave out -n, or the numbers of the hosts.",
            )
        return tuple(given)
    if given:
        host = next(host for host in hosts if host.ranks is None)
        raise UsageError(
            f"{host.name} has no number of ranks, and other hosts have one.",
            f"For example: --hosts {hosts[0].name}:2,{hosts[-1].name}:2",
        )
    if num_processes is None:
        return None
    each, rest = divmod(num_processes, len(hosts))
    if rest:
        raise UsageError(
            f"{num_processes} ranks can't be shared out evenly among {len(hosts)} {what}s.",
            hint or f"Give each host its number: --hosts {hosts[0].name}:{each + 1},...",
        )
    return (each,) * len(hosts)


def ranks_by_host(counts: Iterable[int]) -> tuple[range, ...]:
    """The ranks of each host: contiguous, in the hosts' order."""
    ends = [0, *accumulate(counts)]
    return tuple(range(first, end) for first, end in pairwise(ends))
