"""Frees ranks that no signal reaches, by cutting the connections of their CPU collectives.

Afterwards the ranks raise where they wait (RuntimeError or ValueError, "Connection closed by
peer"), and their collectives are of no use until ``reinitialize``. CPU only: NCCL can't be cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcluster.link import Link

ASK_S = 2.0
Connection = tuple[str, int, str, int]


def between_ranks(listed: Mapping[int, Sequence[Connection]]) -> dict[int, list[Connection]]:
    """For each rank its connections that belong to collectives: those that lead to a rank.

    That is gloo, which connects the devices of one process by TCP as well. What leads to other
    processes (ipyparallel, a user's database) is left out; JAX's coordinator the ranks don't list.
    """
    ends = {tuple(where) for connections in listed.values() for where in connections}
    found: dict[int, list[Connection]] = {}
    for rank, connections in listed.items():
        for own, own_port, peer, peer_port in connections:
            if (peer, peer_port, own, own_port) in ends:
                found.setdefault(rank, []).append((own, own_port, peer, peer_port))
    return found


def sever(link: Link, ranks: Sequence[int], timeout_s: float = ASK_S) -> dict[int, int]:
    """Cut what connects these ranks with each other; returns how many connections of each.

    The ranks' side threads do it, so it needs no main thread; some 10 ms.
    """
    answers = link.gather(ranks, "connections", timeout_s=timeout_s)
    listed = {
        rank: [(c[0], c[1], c[2], c[3]) for c in event.body]
        for rank, event in answers.items()
        if event.op == "reply"
    }
    bodies = {rank: {"connections": ends} for rank, ends in between_ranks(listed).items()}
    cut = link.gather(list(bodies), "sever", bodies=bodies, timeout_s=timeout_s)
    return {rank: event.body for rank, event in cut.items() if event.op == "reply"}
