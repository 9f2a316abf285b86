"""Which variables come back, from when, and which are lost on all ranks alike. Pure.

It follows from what each living rank has saved, and from what dead ones have told of themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from jaxcluster.ranks import by_value, name_ranks
from jaxcluster.records.saved_states import Dead
from jaxcluster.wire.ops.state import SavedNames, SaveReport

LITERAL = "="  # what begins the text of a value that Python reads (engine.digests)
OWN = "each rank had its own, and one rank died"


@dataclass(frozen=True)
class Plan:
    """Which names come back, from when, and which are lost on all ranks alike.

    Attributes:
      names: those that are bound again on the ranks that had them.
      older: those of ``names`` that are taken from before the cell.
      gone: names that were not there before the cell, which is undone.
      shared: those of ``names`` that the successor of a dead rank gets from ``donor``.
      own: what else it gets: names, and what Python writes for their values.
      lost: all others, and why.
    """

    names: frozenset[str]
    older: frozenset[str]
    gone: frozenset[str]
    shared: dict[int, frozenset[str]]
    own: dict[int, dict[str, str]]
    lost: dict[str, str]
    donor: int


def plan(
    reports: Mapping[int, SaveReport],
    dead: Mapping[int, Dead],
    cell_is_undone: bool = False,
) -> Plan:
    """What to restore of what each living rank has saved. Pure.

    All ranks take a name from the same moment: rank 0's ``params`` after the cell and rank 1's from
    before it would be silently wrong together. That is the newest where all ranks have it, and
    what was before the cell where one of them lost it in there, or where the cell is to be undone.
    Where a rank does not know what was before the cell (it had to release it), none goes back.
    """
    older, gone = taken_back(reports, cell_is_undone)
    chosen = as_chosen(reports, older)
    lost = {n: why for n, why in _lost_in(chosen.values()).items() if n not in gone}
    found = Successors()
    if dead:
        found = successors(chosen, dead)
        lost |= {name: why for name, why in found.lost.items() if name not in gone}
        lost = lost_with_dead(chosen, dead, gone, reports) | lost
    names = frozenset(n for report in chosen.values() for n in report.kept)
    names -= set(lost) | gone
    return Plan(
        names,
        frozenset(older & names),
        frozenset(gone),
        {rank: names & found.shared.get(rank, set()) for rank in dead},
        {rank: only(found.own.get(rank, {}), names) for rank in dead},
        lost,
        min(reports),
    )


def taken_back(
    reports: Mapping[int, SaveReport], cell_is_undone: bool
) -> tuple[set[str], set[str]]:
    """The names that are taken from before the cell, and those that were not there before it."""
    then = {rank: _as_before(report) for rank, report in reports.items()}
    changed = {n for r in reports.values() for n in r.before.names.union(r.before.absent)}
    if not all(report.before.known for report in reports.values()):
        changed = set()
    lost = _lost_in(reports.values())
    lost_then = _lost_in(then.values())
    there = {n for report in then.values() for n in report.names}
    older, gone = set(), set()
    for name in changed:
        if cell_is_undone and name not in there:
            gone.add(name)
        elif (cell_is_undone or name in lost) and name in there and name not in lost_then:
            older.add(name)
    return older, gone


def as_chosen(reports: Mapping[int, SaveReport], older: Set[str]) -> dict[int, SavedNames]:
    """What ranks have saved, with ``older`` as it was before the cell."""
    return {rank: _mixed(one, older) for rank, one in reports.items()}


def lost_with_dead(
    chosen: Mapping[int, SavedNames],
    dead: Mapping[int, Dead],
    gone: Set[str],
    reports: Mapping[int, SaveReport],
) -> dict[str, str]:
    """The names that only ranks had which have died: what is said of each.

    Others may have had it too, and have lost it since, as what the undone cell has donated.
    """
    known = {n for report in chosen.values() for n in report.names}
    had: dict[str, list[int]] = {}
    for rank, one in sorted(dead.items()):
        for name in (one.names or frozenset()) - known - gone:
            had.setdefault(name, []).append(rank)
    found = {}
    # Of a cell that nobody has ended it is known only what it may have bound, on each of them.
    for name, ranks in had.items():
        is_sure = len(ranks) == 1 and name not in dead[ranks[0]].maybe
        can = "had it" if is_sure else "may have had it"
        why = f"only {name_ranks(ranks)} {can}, and died"
        if losers := [r for r, report in sorted(reports.items()) if name in report.unbound]:
            how = reports[losers[0]].unbound[name].partition(" (")[2].removesuffix(")") or "lost"
            why = f"{how} on {name_ranks(losers)}, and {name_ranks(ranks)} died"
        found[name] = why
    return found


def _lost_in(reports: Iterable[SavedNames]) -> dict[str, str]:
    lost: dict[str, str] = {}
    for report in reports:
        for name, why in report.lost.items():
            lost.setdefault(name, why)
    return lost


def _as_before(report: SaveReport) -> SavedNames:
    """A rank's report, were it as it was before the cell."""
    return _mixed(report, report.before.names.union(report.before.absent))


def _mixed(newest: SaveReport, older: Set[str]) -> SavedNames:
    """A rank's report of the newest values, and of those before the cell for ``older``."""

    def names(new: list[str], old: list[str]) -> list[str]:
        return [n for n in new if n not in older] + [n for n in old if n in older]

    def values(new: dict[str, str], old: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in new.items() if name not in older}
        return kept | only(old, older)

    before = newest.before
    return SavedNames(
        names(newest.kept, before.kept),
        values(newest.lost, before.lost),
        names(newest.spanning, before.spanning),
        names(newest.common, before.common),
        values(newest.digests, before.digests),
        values(newest.texts, before.texts),
    )


def only(texts: Mapping[str, str], names: Set[str]) -> dict[str, str]:
    """What is said of these names alone."""
    return {name: text for name, text in texts.items() if name in names}


@dataclass(frozen=True)
class Successors:
    """What those get that take the place of dead ranks.

    Attributes:
      shared: names whose values they take from a survivor.
      own: names, and what Python writes for the values that the dead rank had.
      lost: names that are lost on all ranks, and why.
    """

    shared: dict[int, set[str]] = field(default_factory=dict)
    own: dict[int, dict[str, str]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


def successors(saved: Mapping[int, SavedNames], dead: Mapping[int, Dead]) -> Successors:
    """Which names the successors of dead ranks get, and which are lost since nobody knows. Pure.

    Another rank's own value on a successor would be silently wrong, and that all survivors have
    the same does not mean that the dead rank had it too. So they get what it has told: a value
    that the survivors have as well, or a plain one of its own. Where it has told nothing of a name
    (its last cell has bound it), they get what can be no rank's own (``engine``'s ``is_common``).
    """
    found = Successors({rank: set() for rank in dead}, {rank: {} for rank in dead})
    for name in sorted({n for one in saved.values() for n in one.kept}):
        had = [rank for rank, one in dead.items() if _may_have_had(one, name)]
        if not all(name in one.kept for one in saved.values()):
            unheard = [rank for rank in had if not dead[rank].is_current]
            if any(name in (dead[rank].names or ()) for rank in had):
                found.lost[name] = OWN
            elif unheard and any(name in one.spanning for one in saved.values()):
                found.lost[name] = f"rank {unheard[0]}, which died, may have had a part of it"
            continue  # else it stays with those that have it
        texts = {rank: one.texts.get(name, "") for rank, one in saved.items()}
        for rank in had:
            told = dead[rank].values.get(name, "")
            if told and all(text == told for text in texts.values()):
                found.shared[rank].add(name)
            elif own := _own_text(rank, name, dead[rank], texts):
                found.own[rank][name] = own
            elif not told and is_common(name, list(saved.values())):
                found.shared[rank].add(name)
            else:
                found.lost[name] = _why_lost(rank, name, told, list(saved.values()))
                break
    return found


def tell_unheard(dead: Mapping[int, Dead]) -> str:
    """That ranks may have had names which nobody knows; "" if none can have had any. Pure."""
    since = by_value({r: one.unheard for r, one in dead.items() if one.unheard is not None})
    return " ".join(
        f"Names that {name_ranks(ranks)} alone had"
        f"{f' since cell [{seq}]' if seq else ''} are lost, too, and are not known here."
        for seq, ranks in sorted(since.items())
    )


def may_be_own(name: str, saved: Mapping[int, SavedNames], dead: Mapping[int, Dead]) -> bool:
    """Whether a rank that has died may have had another value than those that were saved."""
    texts = {one.texts.get(name, "") for one in saved.values()}
    for one in dead.values():
        told = one.values.get(name, "")
        if texts != {told} if told else not is_common(name, list(saved.values())):
            return True
    return False


def _may_have_had(one: Dead, name: str) -> bool:
    return one.names is None or not one.is_current or name in one.names


def _own_text(rank: int, name: str, one: Dead, texts: Mapping[int, str]) -> str:
    """What Python writes for a dead rank's own value; "" if that is not known.

    It is what it told, if it still had it: the survivors have told no change of theirs since, and
    have what they told. Whatever is each rank's own number, is that of the dead rank too.
    """
    told = one.values.get(name, "")
    if told.startswith(LITERAL):
        unchanged = all(one.others.get(r, {}).get(name) == text for r, text in texts.items())
        return told.removeprefix(LITERAL) if unchanged else ""
    if not told and len(texts) > 1 and all(t == f"{LITERAL}{r}" for r, t in texts.items()):
        return str(rank)
    return ""


def is_common(name: str, saved: Sequence[SavedNames]) -> bool:
    return all(name in one.common for one in saved) and _is_equal(name, saved)


def _is_equal(name: str, saved: Sequence[SavedNames]) -> bool:
    digests = {one.digests.get(name) for one in saved}
    return len(digests) == 1 and digests != {None}


def _why_lost(rank: int, name: str, told: str, saved: Sequence[SavedNames]) -> str:
    if told or not _is_equal(name, saved):
        return OWN
    if len(saved) == 1:
        return "the only survivor may have had its own value"
    return f"rank {rank}, which died, may have had another value"
