"""What ranks have kept of loops (``engine.steps.checkpoints``), for ranks on other hosts.

Each rank keeps it beside its agent. Other ranks go on from it by the folders of all that are on
their host. So these are brought to each host, once it is known which ranks are where.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from jaxcluster.agent.client import answers
from jaxcluster.agent.requests import Get, Put, Remove
from jaxcluster.allocation.fleet import Place, copy_file
from jaxcluster.errors import LaunchError

FOLDER, KEPT = "steps", "kept.json"
ASK_S = 10.0


def bring(homes: Mapping[int, Place], places: Iterable[Place]) -> None:
    """Have a host's ranks find what all ranks have kept, as far as their hosts are there.

    What can't be read or written is left out: the loop begins at 0 then, and says so.

    Args:
      homes: the hosts of the ranks that have kept it.
      places: those of the next ranks.
    """
    found = _kept(homes)
    for here in places:
        for rank, text in found.items() if here.ranks else ():
            if homes[rank] is not here:
                with contextlib.suppress(LaunchError):
                    _bring(rank, text, homes[rank], here)


def _kept(homes: Mapping[int, Place]) -> dict[int, bytes]:
    """What each rank says that it has, if it has something and its host is there."""
    asked = [
        (rank, home.agent.begin(Get(f"{FOLDER}/rank-{rank}/{KEPT}")))
        for rank, home in homes.items()
        if not home.lost
    ]
    return {rank: bytes(data) for rank, (_, data) in answers(asked, ASK_S).items()}


def _bring(rank: int, text: bytes, home: Place, here: Place) -> None:
    folder = f"{FOLDER}/rank-{rank}"
    here.agent.ask(Remove(folder), ASK_S)  # of ranks of this number that were there before
    entries: list[dict[str, Any]] = json.loads(text)
    try:
        for entry in entries:
            version = f"{folder}/{entry['loop']}/v{entry['number']}"
            for name in (f"rank-{rank}.state", *entry["files"]):
                copy_file(home, f"{version}/{name}", here, f"{version}/{name}")
        here.agent.ask(Put(f"{folder}/{KEPT}"), ASK_S, text)
    except LaunchError:
        with contextlib.suppress(LaunchError):
            here.agent.ask(Remove(folder), ASK_S)
        raise
