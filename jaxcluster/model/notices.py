"""What is said under a cell besides the output of its ranks. Pure.

A notice is no error, and is not shown as one, unless it is an ``Alarm``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence

from jaxcluster.model import replicas
from jaxcluster.model.outputs import CellRecord
from jaxcluster.ranks import begin_ranks, by_value, name_ranks

RANKS, RANK = "<ranks>", "<rank>"  # in these lines
FAULT = (
    f"jaxcluster itself failed on {RANKS} after the cell's own code, which is not affected: {{}}. "
    f"%jaxcluster logs {RANK} has the whole traceback: please report it.\n"
)
BETWEEN = f"Between cells, on {RANKS}, {{}}. No cell was ended by it.\n"
MOST_CHARS = 200  # of the line that tells of an error while other ranks still run


class Alarm(str):
    """A notice of something that went wrong.

    Attributes:
      theirs: the part of it that the cell's own code has said; "" if there is none.
    """

    theirs: str = ""


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


class Lasting(str):
    """A notice of what is over: it takes the place of the last passing one, and stays."""


def first_error(
    record: CellRecord,
    open_ranks: Sequence[int],
    grace_s: float,
    hosts: Mapping[int, str],
    paused: Collection[int] = (),
) -> Alarm:
    """That ranks have failed, and how long the others get to end the cell.

    Args:
      open_ranks: the others.
      hosts: of the ranks, where there are several.
      paused: ranks that a person holds; nobody's time runs meanwhile.
    """
    rank, error = min(record.errors.items())
    verb = "has" if len(open_ranks) == 1 else "have"
    rest = f"{begin_ranks(open_ranks, hosts)} {verb} {grace_s:g} s to end the cell.\n"
    if paused:
        wait = "waits" if len(paused) == 1 else "wait"
        rest = f"The cell goes on while {name_ranks(paused, hosts)} {wait} for you.\n"
    if error.heard == 0:  # as it is said at the end, unless more is known by then
        return Alarm(f"{error.evalue[:1].upper()}{error.evalue[1:]}. {rest}")
    if error.heard is not None:  # strict mode: all that is known is told at the end
        who = begin_ranks(record.errors, hosts)
        what = "diverged in strict mode: the programs that differ were not launched."
        return Alarm(f"{who} {what} {rest}")
    line = f", line {error.lineno}" if error.lineno else ""
    place = f" (cell [{record.execution_count}]{line}). "
    who = begin_ranks([rank], hosts)
    said = " ".join(f"{who} raised {error.ename}: {error.evalue[:400]}".split())
    room = max(40, MOST_CHARS - len(place) - len(rest))
    if len(said) > room:
        said = said[: room - 1] + "…"
    told = Alarm(said + place + rest)
    told.theirs = said
    return told


def deaths(died: Mapping[int, str], open_ranks: Sequence[int], hosts: Mapping[int, str]) -> Alarm:
    """That ranks have died, where others are still waited for; of what is told at the end.

    Args:
      died: how each has ended.
      open_ranks: the others, which have been interrupted.
      hosts: of the ranks, where there are several.
    """
    verb = "has" if len(open_ranks) == 1 else "have"
    return Alarm(
        f"{begin_ranks(died, hosts)} died. {begin_ranks(open_ranks, hosts)} {verb} been "
        f"interrupted, but {verb} not left the cell yet.\n"
    )


def lost_hosts(lost: Mapping[int, str]) -> Alarm:
    """That hosts are lost, before anything is done about it.

    Args:
      lost: the ranks that were on them, and for each which host, and how it was lost.
    """
    told = by_value(lost).items()
    return Alarm("".join(f"{begin_ranks(ranks)}: {why}.\n" for why, ranks in told))


def faults(record: CellRecord) -> list[Warned]:
    """What was wrong without an error of the cell's: copies that differ, and errors of ours.

    And what threads have failed with on ranks whose output is not shown, with Python's traceback.
    """
    found: dict[str, list[int]] = {}
    shown = record.shown or record.ranks[:1]
    for rank, reply in sorted(record.replies.items()):
        if reply.thread_error is not None and rank not in shown:
            found.setdefault(f"{reply.thread_error.tell(RANKS)}\n", []).append(rank)
        if reply.between:
            found.setdefault(BETWEEN.format(reply.between), []).append(rank)
        if reply.fault:
            found.setdefault(FAULT.format(reply.fault), []).append(rank)
    copied = replicas.tell({rank: reply.copies for rank, reply in record.replies.items()})
    return [Warned(told) for told in copied] + [
        Warned(told.replace(RANKS, name_ranks(ranks)).replace(RANK, str(ranks[0])))
        for told, ranks in found.items()
    ]


def tell_behind(behind: Mapping[int, float], hosts: Mapping[int, str] | None = None) -> str:
    """Who was slower than the fastest rank, in a sentence; "" if nobody was.

    Args:
      behind: by how many seconds (see ``CellRecord.behind``).
    """
    if not behind:
        return ""
    times = sorted(math.floor(10 * seconds + 0.5) / 10 for seconds in behind.values())
    least, most = f"{times[0]:.1f}", f"{times[-1]:.1f}"
    by = most if least == most else f"{least} to {most}"
    return f"{begin_ranks(behind, hosts)} {'was' if len(behind) == 1 else 'were'} {by} s behind."
