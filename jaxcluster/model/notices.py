"""What is said under a cell while it runs, besides what its ranks put out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import begin_ranks, name_ranks

MOST_CHARS = 200  # of the line that tells of an error while other ranks still run


def first_error(
    record: CellRecord, open_ranks: Sequence[int], grace_s: float, hosts: Mapping[int, str]
) -> str:
    """That ranks have failed, and how long the others get to end the cell.

    Args:
      open_ranks: the others.
      hosts: of the ranks, where there are several.
    """
    rank, error = min(record.errors.items())
    verb = "has" if len(open_ranks) == 1 else "have"
    rest = f"{begin_ranks(open_ranks, hosts)} {verb} {grace_s:g} s to end the cell.\n"
    if error.heard is not None:  # strict mode: all that is known is told at the end
        who = begin_ranks(record.errors, hosts)
        return f"{who} diverged in strict mode, with nothing launched. {rest}"
    line = f", line {error.lineno}" if error.lineno else ""
    place = f" (cell [{record.execution_count}]{line}). "
    who = begin_ranks([rank], hosts)
    said = " ".join(f"{who} raised {error.ename}: {error.evalue[:400]}".split())
    room = max(40, MOST_CHARS - len(place) - len(rest))
    if len(said) > room:
        said = said[: room - 1] + "…"
    return said + place + rest


def deaths(died: Mapping[int, str], open_ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """That ranks have died, where others are still waited for; of what is told at the end.

    Args:
      died: how each has ended.
      open_ranks: the others, which have been interrupted.
      hosts: of the ranks, where there are several.
    """
    verb = "has" if len(open_ranks) == 1 else "have"
    return (
        f"{begin_ranks(died, hosts)} died. {begin_ranks(open_ranks, hosts)} {verb} been "
        "interrupted, and not left the cell yet.\n"
    )


def faults(record: CellRecord) -> list[str]:
    """Errors of ours after the cell's own code: told as such, equal ones once."""
    found: dict[str, list[int]] = {}
    for rank, reply in sorted(record.replies.items()):
        if reply.fault:
            found.setdefault(reply.fault, []).append(rank)
    return [
        f"jaxcluster itself failed on {name_ranks(ranks)} after the cell's own code, which is not "
        f"affected: {fault}. %jaxcluster logs {ranks[0]} has the whole traceback: please report "
        "it.\n"
        for fault, ranks in found.items()
    ]
