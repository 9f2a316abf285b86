"""How many ranks each of the hosts gets that were asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from jaxcluster.errors import UsageError


def place_on(
    many: int, what: str, each: int | None, num_processes: int | None, example: str
) -> tuple[int, ...] | None:
    """As ``place``, for hosts that have no names yet (nodes, pods), with ``each`` so many ranks."""
    hosts = [(f"{what} {i}", each) for i in range(many)]
    return place(hosts, num_processes, what, f"For example: {example}, without -n")


def place(
    hosts: Sequence[tuple[str, int | None]],
    num_processes: int | None,
    what: str = "host",
    hint: str = "",
) -> tuple[int, ...] | None:
    """How many ranks each host gets; None where the hosts' own devices are to decide it.

    Args:
      hosts: the name of each, and its number of ranks if that was given.

    Raises:
      UsageError: the hosts' numbers and ``-n`` don't fit each other.
    """
    given = [ranks for _, ranks in hosts if ranks is not None]
    if len(given) == len(hosts):
        if num_processes not in (None, sum(given)):
            raise UsageError(
                f"-n {num_processes} does not match the {what}s' ranks, {sum(given)} in all.",
                hint or "Leave out -n, or the numbers of the hosts.",
            )
        return tuple(given)
    if given:
        name = next(name for name, ranks in hosts if ranks is None)
        raise UsageError(
            f"{name} has no number of ranks, and other hosts have one.",
            f"For example: --hosts {hosts[0][0]}:2,{hosts[-1][0]}:2",
        )
    if num_processes is None:
        return None
    each, rest = divmod(num_processes, len(hosts))
    if rest:
        raise UsageError(
            f"{num_processes} ranks can't be shared out evenly among {len(hosts)} {what}s.",
            hint or f"Give each host its number: --hosts {hosts[0][0]}:{each + 1},...",
        )
    return (each,) * len(hosts)


def ranks_by_host(counts: Iterable[int]) -> tuple[range, ...]:
    """The ranks of each host: contiguous, in the hosts' order."""
    ends = [0, *accumulate(counts)]
    return tuple(range(first, end) for first, end in pairwise(ends))
