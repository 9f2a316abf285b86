"""Whether ranks launched different programs before one of them died of it. Pure.

Where collectives of different sizes meet, gloo aborts a process, and mostly not the one whose shape
was wrong. The journals of those that live and what is left of the dead one's (``engine/blackbox``)
tell who made another launch than the others; who launched fewer is no evidence, since a death ends
a rank's launches anywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from jaxcluster import wire
from jaxcluster.model import explain, lockstep
from jaxcluster.model.findings import Mismatch, Report
from jaxcluster.ranks import by_size


def cause(
    reports: Mapping[int, wire.RankReport],
    dead: Mapping[int, Sequence[wire.Launch]],
    cell: int,
    seq: int,
    hosts: Mapping[int, str],
    source: str = "",
) -> Report | None:
    """The first launch of a set in which ranks differ, if this cell or a later one has made it.

    Args:
      reports: of the ranks that live.
      dead: what is left of the others' journals.
      cell: the number of the cell in which they died.
      seq: its seq.
      hosts: of all ranks, where there are several.
      source: the cell's.
    """
    made = {rank: report.launches for rank, report in reports.items()} | dict(dead)
    for processes in sorted({entry.processes for entries in made.values() for entry in entries}):
        launches = {
            rank: {e.seq: e for e in entries if e.processes == processes}
            for rank, entries in made.items()
        }
        # Who calls what others' devices compute alone makes none of it.
        launches = {r: m for r, m in launches.items() if m and r in lockstep.members(processes)}
        for place in sorted({n for entries in launches.values() for n in entries}):
            here = {rank: entries[place] for rank, entries in launches.items() if place in entries}
            groups = _grouped(here)
            # What threads launch is known by its order alone, and a death says little of that.
            if not all(e.cell_seq for e in here.values()):
                continue
            if len(groups) < 2 or max(e.cell_seq for e in here.values()) < seq:
                continue
            found = Mismatch(processes, place, groups)
            whole = {r: {n: _unbroken(e) for n, e in m.items()} for r, m in launches.items()}
            scene = explain.Scene(source, cell, {}, whole, set(), set(), {}, hosts)
            told = explain.tell_mismatch(found, scene)
            after = {e.cell_seq for m in launches.values() for n, e in m.items() if n >= place}
            ranks = found.culprits, found.others
            cells = frozenset(after)
            return Report(
                "mismatch", processes, place, *ranks, told.lines, seq, cells, title=told.title
            )
    return None


def reports_of(
    dead: Iterable[int], left: Mapping[int, Sequence[wire.Launch]]
) -> dict[int, wire.RankReport]:
    """Dead ranks as if they had been asked: what is left of their journals."""
    return {
        rank: wire.RankReport(wire.RankState(rank, 0, "", "dead"), [], list(left.get(rank, ())))
        for rank in dead
    }


def _grouped(here: Mapping[int, wire.Launch]) -> tuple[tuple[int, ...], ...]:
    """Ranks that launched the same program, the largest group last.

    One that a death has broken off is known by its name and inputs.
    """
    whole = {_called(e): e.fingerprint for e in here.values() if wire.BROKEN_OFF not in e.name}

    def known_by(entry: wire.Launch) -> object:
        is_broken = wire.BROKEN_OFF in entry.name
        return whole.get(_called(entry), _called(entry)) if is_broken else entry.fingerprint

    return by_size({rank: known_by(entry) for rank, entry in here.items()})


def _called(entry: wire.Launch) -> tuple[str, str]:
    return _unbroken(entry).name, entry.signature


def _unbroken(entry: wire.Launch) -> wire.Launch:
    return dataclasses.replace(entry, name=entry.name.partition(wire.BROKEN_OFF)[0])
