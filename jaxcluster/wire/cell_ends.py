"""How a cell has ended on its ranks: what each of them launched in it, compared. Pure.

What the main threads of a cell's ranks launch in it belongs to that cell. So where all processes of
a set ran the cell, they must have launched the same programs of that set in it, whatever was queued
behind it, runs by now, or was launched by others. Compared with all launches so far, a later cell
that launches one more would hide one that was skipped. What threads and tasks launch belongs to no
cell; it is compared by its order alone (``model.lockstep``).

The ranks and the notebook both decide by this: the ranks whether the next cell may begin
(``engine.gate``), the notebook whether the cell's numbers may be trusted.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from jaxcluster.wire.launches import CROSSING
from jaxcluster.wire.messages import CellReply, ErrorInfo


@dataclass(frozen=True)
class CellEnd:
    """A cell's end on one rank.

    Attributes:
      status: as in ``CellReply``.
      own: set of processes -> [number, hash] of what the main thread launched in the cell.
      launches: the same of all launches so far.
      foreign: the sets of which something else than cells has launched programs.
      unchecked: as in ``CellReply``: a program broke off, and the ranks are to be checked.
      background: whether a thread, task or timer of the user's lives that may launch more.
      refused: in strict mode, a launch was on which the ranks disagreed, or was given up.
      stopped_at: as in ``CellReply``: where it was stopped, or an error was raised.
    """

    status: str
    own: dict[str, list[int]] = field(default_factory=dict)
    launches: dict[str, list[int]] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    unchecked: bool = False
    background: bool = False
    refused: bool = False
    stopped_at: str | None = None


def end_of(reply: CellReply) -> CellEnd:
    """The end that a reply tells of."""
    return CellEnd(
        reply.status,
        reply.own,
        reply.launches,
        reply.foreign,
        reply.unchecked,
        reply.background,
        is_refused(reply.error, reply.given_up),
        reply.stopped_at,
    )


def is_refused(error: ErrorInfo | None, given_up: Collection[str]) -> bool:
    """Whether a rank has raised before a launch on which the ranks disagree, or came to none."""
    return bool(given_up) or (error is not None and error.heard is not None)


def differing(ends: Mapping[int, CellEnd]) -> list[str]:
    """The sets of processes whose members, by the cell's end, have not launched the same.

    A set is left out where one of its members did not run the cell: then what the others launched
    may be meant for another cell's launches. Pairs of sets (``crossing``) come last.

    Args:
      ends: that of each rank that ran the cell.
    """
    sets = {s for end in ends.values() for told in (end.own, end.launches) for s in told}
    return sorted(
        (s for s in sets if _involved(s) <= ends.keys() and _differs(s, ends)),
        key=lambda s: (CROSSING in s, s),
    )


def _differs(processes: str, ends: Mapping[int, CellEnd]) -> bool:
    if _own_differs(processes, ends):
        return True
    if _are_others_about(processes, ends):
        return False  # a thread may be about to launch the same on the others
    return _so_far_differs(processes, ends)


def _own_differs(processes: str, ends: Mapping[int, CellEnd]) -> bool:
    return len({tuple(ends[r].own.get(processes, (0, 0))) for r in _members(processes)}) > 1


def _so_far_differs(processes: str, ends: Mapping[int, CellEnd]) -> bool:
    return len({tuple(ends[r].launches.get(processes, (0, 0))) for r in _members(processes)}) > 1


def _are_others_about(processes: str, ends: Mapping[int, CellEnd]) -> bool:
    """Whether something else than cells has launched programs of this set, or may."""
    parts = processes.split(CROSSING)
    return any(
        ends[r].background or any(part in ends[r].foreign for part in parts)
        for r in _members(processes)
    )


def may_be_shifted(ends: Mapping[int, CellEnd]) -> bool:
    """Whether ranks that were uneven before may have met other cells' launches in this one.

    ``differing`` leaves it to a thread that lives: this one may be about to make what is missing.
    """
    sets = {s for end in ends.values() for s in end.own if CROSSING not in s}
    return any(_involved(s) <= ends.keys() and _so_far_differs(s, ends) for s in sets)


def is_certain(processes: str, ends: Mapping[int, CellEnd]) -> bool:
    """Whether something is wrong with what the ranks have launched of a set in this very cell.

    It is not where they have launched nothing of it here, and differed before; nor where a thread
    makes, or has made, what a rank lacks. Where none lives any more, all launches so far tell. A
    thread does not make what a rank lacks by an error.
    """
    members = _members(processes)
    if CROSSING not in processes and not any(ends[r].own.get(processes) for r in members):
        return False
    if not _are_others_about(processes, ends) or _has_failed_before_all(processes, ends):
        return True
    lives = any(ends[rank].background for rank in members)
    return not lives and _so_far_differs(processes, ends)


def _has_failed_before_all(processes: str, ends: Mapping[int, CellEnd]) -> bool:
    """Whether an error has kept a rank from launches of this set that others have made."""
    made = {r: ends[r].own.get(processes, (0, 0))[0] for r in _members(processes)}
    return any(made[r] < max(made.values()) and ends[r].status == "error" for r in made)


def launched_alike(processes: str, ends: Mapping[int, CellEnd]) -> bool:
    """Whether the ranks have launched the same of a set in this cell, whatever they had before."""
    return not _own_differs(processes, ends)


def failed_apart(ends: Mapping[int, CellEnd]) -> bool:
    """Whether an error has ended ranks alone, or in different places, behind launches of the cell.

    So one rank may have a name for what another one has not come to.
    """
    places = {(end.status, end.stopped_at) for end in ends.values()}
    has_failed = any(end.status == "error" for end in ends.values())
    is_apart = len(places) > 1 or any(place == "" for _, place in places)
    return has_failed and is_apart and any(end.own for end in ends.values())


def may_go_on(ends: Mapping[int, CellEnd]) -> bool:
    """Whether the next cell may begin: nothing differs, no rank was interrupted or is unchecked.

    Else the notebook that sent the cell settles it, and says when (``clear``).
    """
    return not (were_cut_short(ends) or differing(ends))


def were_cut_short(ends: Mapping[int, CellEnd]) -> bool:
    """Whether ranks may be of different steps, whatever threads may yet launch."""
    unsure = any(e.status == "interrupted" or e.unchecked or e.refused for e in ends.values())
    return unsure or failed_apart(ends)


def covers(ranks: Collection[int], ends: Mapping[int, CellEnd]) -> bool:
    """Whether all processes of what was launched in a cell have run it, which ran on ``ranks``.

    Else nothing is known of the others' launches without asking them.
    """
    return all(_involved(processes) <= set(ranks) for end in ends.values() for processes in end.own)


def guards(ranks: Collection[int], later: Collection[int]) -> bool:
    """Whether a cell of ``later`` ranks waits for the end of an earlier one on all its ``ranks``.

    Not where it runs on some of them only: those may be meant to meet, in it, what the others
    launch in the earlier cell.
    """
    return len(ranks) > 1 and set(ranks) <= set(later)


@functools.lru_cache(maxsize=256)  # each end of a cell asks for those of the same sets
def _members(processes: str) -> frozenset[int]:
    """The ranks of a set; of a pair of sets those that are in both."""
    return frozenset(set.intersection(*_parts(processes)))


@functools.lru_cache(maxsize=256)
def _involved(processes: str) -> frozenset[int]:
    return frozenset(set.union(*_parts(processes)))


def _parts(processes: str) -> list[set[int]]:
    return [set(map(int, part.split(","))) for part in processes.split(CROSSING)]
