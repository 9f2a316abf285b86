"""What ranks have kept of the last loop of ``jaxcluster.steps``, in a line."""

from __future__ import annotations

import time

from jaxcluster import wire
from jaxcluster.cluster.world import World
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.state import KeptStep, KeptSteps

ASK_S = 10.0


def tell_steps(world: World, forget: bool = False) -> str:
    """What all ranks have kept of the last loop that did not come to its end.

    Args:
      forget: have them keep nothing of it from now on.

    Raises:
      RankError: a rank gave no answer.
    """
    answers = world.ask(range(world.num_processes), KeptSteps(forget), timeout_s=ASK_S)
    found: dict[tuple[str, int], dict[int, KeptStep]] = {}
    for rank, steps in replies(answers).items():
        for one in steps:
            found.setdefault((one.loop, one.number), {})[rank] = one
    whole = []
    for mine in found.values():
        last = next(iter(mine.values()))
        over = {rank: one.over for rank, one in mine.items() if one.over is not None}
        is_over = len(over) == len(mine) and wire.cell_ends.may_go_on(over)
        if len(mine) == len(last.ranks) and not is_over:
            whole.append(last)
    if not whole:
        return "No loop is kept."
    last = max(whole, key=lambda one: one.at)
    at = time.strftime("%H:%M", time.localtime(last.at))
    return f"Step {last.step:,} of cell [{last.cell}] is kept, from {at}."
