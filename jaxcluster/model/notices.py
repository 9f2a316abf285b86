"""What is said under a cell besides the output of its ranks, and of ranks that have ended. Pure.

A notice is no error, and is not shown as one, unless it is an ``Alarm``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import by_value, name_ranks
from jaxcluster.wire.forks import RESTARTED, STOPPED

FAULT = (
    "jaxcluster itself failed on {ranks} after the cell's own code, which is not affected: "
    "{fault}. %jaxcluster logs {rank} has the whole traceback: please report it.\n"
)


class Alarm(str):
    """A notice of something that went wrong."""


class ClusterWarning(UserWarning):
    """What went wrong without an error of the cell's, where its notices are not shown."""


def warn(text: str) -> None:
    """Have Python warn of it, of no line: none of ours would tell its reader anything.

    Raises:
      ClusterWarning: a filter makes an error of it.
    """
    warnings.warn_explicit(text.rstrip(), ClusterWarning, "jaxcluster", 1)


class Warned(Alarm):
    """An alarm that no error of the cell repeats: it is heard where no notice is shown, too."""


class Passing(str):
    """A notice that is true for a while: the next one takes its place, and the cell's end its."""


def faults(record: CellRecord) -> list[Warned]:
    """Errors of ours after the cell's own code was over."""
    told = {rank: reply.fault for rank, reply in record.replies.items() if reply.fault}
    return [
        Warned(FAULT.format(ranks=name_ranks(ranks), fault=fault, rank=ranks[0]))
        for fault, ranks in by_value(told).items()
    ]


def meant(whys: Iterable[str]) -> str:
    """Why processes have ended that a person has ended; "" where none has."""
    found = {*whys}
    return next((why for why in (STOPPED, RESTARTED) if why in found), "")


def tell_deaths(died: Mapping[int, str], cell: int | None = None) -> list[str]:
    """A line for each rank that has died; and that a person has ended the others.

    Args:
      died: how each has ended.
      cell: the one that they were in.
    """
    where = f" in cell [{cell}]" if cell is not None else ""
    lines = [f"Rank {r} died{where}: {why}." for r, why in sorted(died.items()) if not meant([why])]
    if why := meant(died.values()):
        told = f"Cell [{cell}] was ended: {why}." if cell is not None else f"{why.capitalize()}."
        lines.append(told)
    return lines
