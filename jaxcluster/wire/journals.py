"""What many ranks say of their launches, which are mostly the same ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxcluster.wire.codec import parse
from jaxcluster.wire.messages import Launch, PollReply, RankReport


def parse_polls(bodies: Mapping[int, Any]) -> dict[int, RankReport]:
    """The reports in the ranks' ``PollReply`` bodies.

    Launches that are equal on several of them are one object: of 256 ranks, 256 launches each
    would else be 65,000, each with the names of all processes.
    """
    kinds: dict[Launch, tuple[Any, ...]] = {}
    known: dict[tuple[int, int], Launch] = {}
    found = {}
    for rank, body in bodies.items():
        reply = parse(PollReply, body)
        own = [kinds.setdefault(kind, tuple(vars(kind).values())[1:]) for kind in reply.kinds]
        launches = []
        for seq, number in reply.made:
            key = seq, id(own[number])
            if (launch := known.get(key)) is None:
                launch = known[key] = Launch(seq, *own[number])
            launches.append(launch)
        found[rank] = dataclasses.replace(reply.report, launches=launches)
    return found
