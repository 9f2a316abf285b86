"""Why a cell does not end, and whether its numbers may be trusted. Pure.

The ranks' journals decide, not guesses about time. Programs that a set of processes shares must be
launched by all of them in one order, so there are two certain findings:

- *Different programs*: at one place of a set's sequence two ranks launched different programs. What
  they computed from there on is wrong, whether or not anything hangs.
- *A missing launch*: a rank has made fewer launches than another and can't make more: nothing runs
  or waits on it, whoever sent it, its main thread is free, no thread of the user's lives on it, and
  two looks a moment apart agree. So what the other launched can never complete.

At a cell's end there is no need to wait: what its ranks launched in it is compared by itself
(``diagnose_end``), so that nothing which was launched since can hide it.

Where CPU processes have waited for others in vain to connect to them, one of them says so itself
(``ErrorInfo.unconnected``).

Everything else is a rank that still works, however long it takes; who waits for it is a
``Suspicion``, which is told and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from jaxcluster import wire
from jaxcluster.model import explain, lockstep
from jaxcluster.model.findings import (
    Crossed,
    FindingKind,
    Mismatch,
    Missing,
    Reason,
    Report,
    Suspicion,
    made_in,
    place_of,
)
from jaxcluster.ranks import begin_ranks, by_size, name_ranks


def may_launch(
    report: wire.RankReport,
    before: wire.RankReport | None,
    expected: int = 0,
    is_held: bool = False,
) -> Reason | None:
    """Why this rank may still launch something; None: it can't, until someone sends a cell.

    Args:
      before: what it said a moment ago.
      expected: the seq of the last cell that any notebook has sent to it.
      is_held: the cell that waits there does not begin before what is asked about has ended.
    """
    state, old = report.state, before.state if before is not None else None
    if state.state == "dead":  # a second look tells whether others lack the launch as well
        is_new = old is None or old.state != "dead"
        return Reason("moment", "has just died") if is_new else None
    if state.state != "idle":
        where = place_of(report) or f"cell [{state.cell}]"
        return Reason("cell", f"still runs {where}")
    if state.queued and not is_held:
        return Reason("cell", "has another cell to run first")
    if expected > max(state.ended, state.taken):
        return Reason("cell", "has not received a cell that was sent")
    if state.background:
        runs = "runs" if len(state.background) == 1 else "run"
        what = ", ".join(state.background[:3])
        return Reason("background", f"runs no cell, but its {what} still {runs}")
    if old is None or (old.state, old.gate, old.ended, old.background, old.launches) != (
        "idle", state.gate, state.ended, [], state.launches,
    ) or old.is_queueing:  # fmt: skip
        return Reason("moment", "has just ended its cell")
    if state.probes <= old.probes:
        return Reason("busy", "runs no cell, but its main thread is busy with something else")
    return None


def diagnose(
    reports: Mapping[int, wire.RankReport],
    ended: Iterable[int],
    source: str,
    cell: int,
    errors: Mapping[int, wire.ErrorInfo] | None = None,
    told: Iterable[int] | None = None,
    *,
    before: Mapping[int, wire.RankReport] | None = None,
    expected: Mapping[int, int] | None = None,
    is_patient: bool = True,
) -> Report | Suspicion | None:
    """The certain finding in these reports, if there is one; else who waits for whom, if one does.

    Args:
      reports: what each rank's control channel says.
      ended: the ranks that have ended the cell (or never ran it).
      source: the cell's source, with the notebook's line numbers.
      cell: its number.
      errors: what ranks raised in it.
      told: the ranks that were told to run it; all by default.
      before: what the control channels said a moment ago: without it no launch is missing for
        certain.
      expected: for each rank the seq of the last cell that any notebook has sent to it.
      is_patient: where as many ranks launched one program as another, wait for the ranks to come,
        which show who differs from the most.
    """
    runners = set(reports if told is None else told)
    if (vain := _find_announced_in_vain(reports)) is not None:
        return vain
    told_us, reports = reports, lockstep.with_announced(reports)
    counts = {rank: report.state.launches for rank, report in reports.items()}
    over = set(ended)
    before, expected = before or {}, expected or {}
    hosts = explain.hosts_of(reports)
    suspicion = None
    if any(error.unconnected for error in (errors or {}).values()):
        scene = explain.Scene(source, cell, reports, {}, over, runners, errors or {}, hosts)
        if (unconnected := _find_unconnected(reports, scene)) is not None:
            return unconnected
    for processes in lockstep.sets_of(counts):
        group = {r: reports[r] for r in lockstep.members(processes) if r in reports}
        if not lockstep.uneven(counts, processes):
            continue
        if wire.CROSSING in processes:
            if lockstep.crossed(counts, processes):
                return _report_crossed(processes, group)
            continue
        reasons = {
            r: may_launch(rep, before.get(r), expected.get(r, 0), _is_held(r, processes, group))
            for r, rep in group.items()
        }
        journals = _Set(processes, group, reasons, hosts)
        found: Mismatch | Missing | None = journals.mismatch(is_patient) or journals.missing()
        if found is None:
            suspicion = suspicion or journals.suspicion()
            continue
        if isinstance(found, Missing) and found.wanted is not None:
            then = lockstep.as_interrupted(told_us, found.wanted.cell_seq)
            if then != told_us:  # that ranks lack what they had announced tells nothing
                made = lockstep.with_announced(then)
                group = {r: made[r] for r in group}
                journals = _Set(processes, group, reasons, hosts)
                found = journals.mismatch(False) or journals.missing() or found
        scene = explain.Scene(
            source, cell, group, journals.launches, over, runners, errors or {}, hosts
        )
        compiling = lockstep.compiling(processes, group)
        wait = "waits" if len(compiling) == 1 else "wait"
        return replace(
            _report(found, scene, found.seq, *journals.cells(found.seq)),
            hopeless=f"{name_ranks(compiling)} {wait} in the compiler" if compiling else "",
            has_refused=bool(lockstep.refused(processes, found.seq, group)),
        )
    return suspicion


def diagnose_end(
    reports: Mapping[int, wire.RankReport],
    ends: Mapping[int, wire.cell_ends.CellEnd],
    seq: int,
    source: str,
    cell: int,
    errors: Mapping[int, wire.ErrorInfo],
) -> Report | None:
    """The certain finding in what the ranks of a cell have launched by its end; None: they agree.

    Args:
      reports: what each rank's control channel says now, whatever runs on it by now.
      ends: how the cell has ended on each of its ranks.
      seq: the cell's.
      source, cell, errors: as for ``diagnose``.
    """
    differing = wire.cell_ends.differing(ends)
    alike = {s for end in ends.values() for s in end.own if wire.CROSSING not in s} - {*differing}
    for processes in [*differing, *sorted(alike)]:
        is_certain = processes in differing and wire.cell_ends.is_certain(processes, ends)
        if not (is_certain or _has_met_cells(processes, reports, ends, seq)):
            continue
        if wire.CROSSING in processes:
            counts = {rank: end.launches for rank, end in ends.items()}
            group = {r: rep for r, rep in reports.items() if r in lockstep.members(processes)}
            if lockstep.crossed(counts, processes) and group:
                return _report_crossed(processes, group, seq)
            continue
        members = lockstep.members(processes)
        group = {r: reports[r] for r in members if r in reports}
        if len(group) < len(members):
            culprits, others, lines = _tell_unseen(processes, ends)
            title = "Different programs"
            return Report("mismatch", processes, None, culprits, others, lines, seq, title=title)
        made = {r: made_in(rep, processes, seq) for r, rep in group.items()}
        if wire.cell_ends.launched_alike(processes, ends) and not _has_broken_off(made):
            return _find_shifted(processes, group, seq)
        first = min((e.seq for entries in made.values() for e in entries), default=0)
        launches = {r: dict(enumerate(entries, first)) for r, entries in made.items()}
        scene = explain.Scene(
            source, cell, group, launches, set(ends), set(ends), errors, explain.hosts_of(reports)
        )
        found = _compare_ends(processes, {r: ends[r] for r in group}, launches, first)
        at = launches[found.others[0]].get(found.seq) if found.seq is not None else None
        later = {
            e.cell_seq
            for report in group.values()
            for e in report.launches
            if at is not None and e.processes == processes and e.seq >= at.seq
        }
        return _report(found, scene, at.seq if at else None, seq, frozenset({seq, *later}))
    return None


def _has_met_cells(
    processes: str,
    reports: Mapping[int, wire.RankReport],
    ends: Mapping[int, wire.cell_ends.CellEnd],
    seq: int,
) -> bool:
    """Whether launches of the cell have met another cell's, whatever threads may yet launch."""
    members = set(lockstep.members(processes))
    if not members <= ends.keys() & reports.keys():
        return False
    if any(processes in ends[rank].foreign for rank in members):
        return False  # of a set of which more than whole cells launch programs order alone is known
    made: dict[int, set[int]] = {}
    for rank in members:
        for entry in _entries(reports[rank], processes):
            made.setdefault(entry.seq, set()).add(entry.cell_seq)
    return any(seq in cells and any(c > 0 for c in cells - {seq}) for cells in made.values())


def _report(
    found: Mismatch | Missing, scene: explain.Scene, seq: int | None, cell: int, cells: Set[int]
) -> Report:
    kind: FindingKind
    if isinstance(found, Mismatch):
        kind, told = "mismatch", explain.tell_mismatch(found, scene)
    else:
        kind, told = "missing", explain.tell_missing(found, scene)
    return Report(
        kind, found.processes, seq, found.culprits, found.others, told.lines, cell,
        frozenset(cells), title=told.title,
    )  # fmt: skip


def _report_crossed(processes: str, group: Mapping[int, wire.RankReport], cell: int = 0) -> Report:
    found = _find_crossed(processes, group)
    told = explain.tell_crossed(found, explain.hosts_of(group))
    ranks = found.culprits, found.others
    return Report("mismatch", found.sets[0], None, *ranks, told.lines, cell, title=told.title)


def find_replayed(
    reports: Mapping[int, wire.RankReport], ends: Mapping[int, wire.cell_ends.CellEnd], seq: int
) -> Report | None:
    """Whether what a cell has launched was met by a replay, with zeros, on a rank not in the cell.

    Whoever has brought the ranks back may not know of this cell, and counts are even since.
    """
    for processes in {p for end in ends.values() for p in end.own}:
        members = [r for r in lockstep.members(processes) if r in reports]
        entries = {r: {e.seq: e for e in _entries(reports[r], processes)} for r in members}
        own = {e.seq: e for made in entries.values() for e in made.values() if e.cell_seq == seq}
        for at, launch in sorted(own.items()):
            replayed = [r for r, made in entries.items() if at in made
                        and made[at].cell_seq == wire.OURS]  # fmt: skip
            if replayed:
                others = tuple(r for r in members if r not in replayed)
                lines = (
                    f"{begin_ranks(replayed)} did not run the cell, and ran {launch.name} (launch "
                    f"{at + 1}) with zeros when the ranks were brought back into lockstep.",
                    "Hint: a program that spans processes must be launched by all of them: no "
                    "--ranks.",
                )
                return Report(
                    "missing", processes, at, tuple(replayed), others, lines, seq, frozenset({seq}),
                    title=f"Cell not run on {name_ranks(replayed)}",
                )  # fmt: skip
    return None


def _find_announced_in_vain(reports: Mapping[int, wire.RankReport]) -> Report | None:
    """That a rank announces, in strict mode, a launch that a replay has made on another one.

    So it has been refused here, and that rank announces it no more.
    """
    for rank, report in reports.items():
        if (own := report.announced) is None:
            continue
        members = [r for r in lockstep.members(own.processes) if r in reports and r != rank]
        made = {r: e for r in members for e in _entries(reports[r], own.processes)
                if e.seq == own.seq}  # fmt: skip
        replayed = tuple(r for r, entry in made.items() if entry.cell_seq == wire.OURS)
        if not replayed or len(made) < len(members):
            continue
        others = tuple(sorted({rank, *members} - set(replayed)))
        cells = {e.cell_seq for e in made.values()} - {wire.OURS} | {own.cell_seq}
        lines = (
            f"{begin_ranks(replayed)} ran {own.name} (launch {own.seq + 1}) with zeros when the "
            f"ranks were brought back into lockstep. Rank {rank} was still to launch it.",
        )
        return Report(
            "missing", own.processes, own.seq, replayed, others, lines, own.cell_seq,
            frozenset(cells), title=f"Launch {own.seq + 1} made with zeros",
        )  # fmt: skip
    return None


def _find_unconnected(
    reports: Mapping[int, wire.RankReport], scene: explain.Scene
) -> Report | None:
    """That ranks have waited in vain for others to connect, whatever may still come of these.

    They can run no program of these devices any more.
    """
    failed = [r for r, error in scene.errors.items() if error.unconnected and r in reports]
    made = [e.processes for r in failed for e in reports[r].launches if e.collective]
    if not made:
        return None
    counts = {rank: report.state.launches for rank, report in reports.items()}
    processes = next((p for p in made if lockstep.uneven(counts, p)), made[-1])
    group = {r: reports[r] for r in lockstep.members(processes) if r in reports}
    journals = _Set(processes, group, dict.fromkeys(group), scene.hosts)
    others = {r: error for r, error in scene.errors.items() if not error.unconnected}
    scene = replace(scene, reports=group, launches=journals.launches, errors=others)
    ranks = tuple(r for r in group if r not in failed), tuple(failed)
    found: Mismatch | Missing | None
    lines: tuple[str, ...] = ()
    if (found := journals.missing()) is not None:
        ranks, lines = (found.culprits, found.others), explain.tell_missing(found, scene).lines
    elif (found := journals.mismatch(False)) is not None:
        lines = explain.tell_mismatch(found, scene).lines
    late = name_ranks(ranks[0], scene.hosts) if ranks[0] else "each other"
    earlier = [(r, e) for r in failed for e in journals.launches.get(r, {}).values()]
    broken = [(r, e) for r, e in earlier if wire.BROKEN_OFF in e.name and e.cell != scene.cell]
    if broken:  # that of this cell has failed by it, whoever has launched it
        lines = (explain.tell_earlier(*broken[0], scene.hosts),)
    return Report(
        "missing", processes, found.seq if found is not None else None, *ranks,
        (
            f"{begin_ranks(failed, scene.hosts)} waited for {late} in the first program of their "
            "devices, and gave up after 30 s.",
            *(line for line in lines if not line.startswith("Hint: ")),
            "Hint: CPU processes connect to each other in the first program of their devices. All "
            "ranks must come to it within 30 s.",
        ),
        hopeless="they have not connected", title="Ranks not connected in 30 s",
    )  # fmt: skip


def find_given_up(replies: Mapping[int, wire.CellReply], seq: int) -> Report | None:
    """Whether a launch that ranks had announced when they were stopped could not have come about.

    In strict mode nobody makes it. But a rank that would not have come to it may have skipped an
    earlier one instead, and have made this one in its place: launches may not belong together.
    """
    sets = {processes for reply in replies.values() for processes in reply.given_up}
    for processes in sorted(sets, key=lambda each: (-len(each), each)):
        group = {r: replies[r] for r in lockstep.members(processes) if r in replies}
        others = {r: reply for r, reply in group.items() if processes in reply.given_up}
        culprits = tuple(
            sorted(
                rank
                for rank, reply in group.items()
                if any(_passes_by(rank, reply, r, other, processes) for r, other in others.items())
            )
        )
        waited = [rank for rank in culprits if replies[rank].status != "ok"]
        if waited and waited == list(culprits):  # for one of the others: who began it is not known
            both = tuple(sorted({*waited, *others}))
            line = (
                f"{begin_ranks(others)} and {name_ranks(waited)} had announced different "
                "launches, and waited for each other until the cell was stopped. Earlier launches "
                "may be mismatched too."
            )
            return Report("circle", processes, None, both, (), (line,), seq, frozenset({seq}))
        if culprits:
            line = (
                f"{begin_ranks(culprits)} never came to a launch that {name_ranks(others)} had "
                "announced before the cell was stopped. Earlier launches may be mismatched too."
            )
            ranks = culprits, tuple(sorted(others))
            title = f"Launch skipped on {name_ranks(culprits)}"
            cells = frozenset({seq})
            return Report("missing", processes, None, *ranks, (line,), seq, cells, title=title)
    return None


def _passes_by(
    rank: int, reply: wire.CellReply, announced: int, other: wire.CellReply, processes: str
) -> bool:
    """Whether a rank had ended the cell without what ``announced`` waited for, or waited for it."""

    def made(one: wire.CellReply, where: str) -> int:
        return one.own.get(where, (0, 0))[0]

    if processes in reply.given_up or made(reply, processes) > made(other, processes):
        return False
    return reply.status == "ok" or any(
        announced in lockstep.members(where) and made(other, where) <= made(reply, where)
        for where in reply.given_up
    )


def _find_shifted(processes: str, group: Mapping[int, wire.RankReport], seq: int) -> Report:
    """What a cell launched has met another cell's launches, which some ranks had left out."""
    entries = {r: _entries(report, processes) for r, report in group.items()}
    for at in sorted({e.seq for made in entries.values() for e in made if e.cell_seq == seq}):
        met = {e.cell_seq: e for made in entries.values() for e in made if e.seq == at}
        if len(met) < 2:
            continue
        by_cell = {r: next((e.cell_seq for e in m if e.seq == at), 0) for r, m in entries.items()}
        found = Mismatch(processes, at, by_size(by_cell))
        lines = [f"The ranks launched programs of different cells as launch {at + 1}:"]
        for group_ranks in reversed(found.groups):
            entry = met[by_cell[group_ranks[0]]]
            lines.append(f"  {name_ranks(group_ranks)}: {explain.program_line(entry)}")
        cells = {e.cell_seq for made in entries.values() for e in made if e.seq >= at}
        return Report(
            "mismatch", processes, at, found.culprits, found.others, tuple(lines), min(met),
            frozenset({seq, *cells}), title="Programs of different cells",
        )  # fmt: skip
    line = (
        f"{begin_ranks(group)} had launched different programs before this cell, further back "
        "than the journals go."
    )
    return Report("mismatch", processes, None, (), (), (line,), seq, title="Different programs")


def _entries(report: wire.RankReport, processes: str) -> list[wire.Launch]:
    return [e for e in report.launches if e.processes == processes]


def _tell_unseen(
    processes: str, ends: Mapping[int, wire.cell_ends.CellEnd]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    """Who differs from whom, and what is said of it where a rank can't be asked what it made."""
    found = _compare_ends(processes, {r: ends[r] for r in lockstep.members(processes)}, {}, 0)
    who = f"{begin_ranks(found.culprits)} and {name_ranks(found.others)}"
    counts = {r: end.own.get(processes, (0, 0))[0] for r, end in ends.items()}
    what = "different programs" if isinstance(found, Mismatch) else "different numbers of programs"
    told = ", ".join(f"rank {r}: {counts[r]}" for r in lockstep.members(processes))
    return found.culprits, found.others, (f"{who} launched {what} in the cell ({told}).",)


def _is_held(rank: int, processes: str, group: Mapping[int, wire.RankReport]) -> bool:
    """Whether the cell that waits on a rank begins only after what the others are in has ended.

    Not where others have launched in a later cell already, or a thread of it may have: then it may
    begin here, too, once this rank has heard of it.
    """
    state = group[rank].state
    if not state.gate or not set(lockstep.members(processes)) <= set(state.gate[1:]):
        return False
    count = state.launches.get(processes, [0, 0])[0]
    lacks = (
        e
        for report in group.values()
        for e in report.launches
        if e.processes == processes and e.seq >= count
    )
    return all(lockstep.comes_before(e, state.gate, group) for e in lacks)


def _has_broken_off(made: Mapping[int, Sequence[wire.Launch]]) -> bool:
    """Whether a launch was broken off on some of the ranks, which have launched the same."""
    prints = {tuple(e.fingerprint for e in entries) for entries in made.values()}
    broken = any(wire.BROKEN_OFF in e.name for entries in made.values() for e in entries)
    return broken and len(prints) > 1


def _compare_ends(
    processes: str,
    ends: Mapping[int, wire.cell_ends.CellEnd],
    launches: Mapping[int, Mapping[int, wire.Launch]],
    first: int,
) -> Mismatch | Missing:
    """Where the ranks of a set have first parted in the cell."""
    held = {r: tuple(end.own.get(processes, (0, 0))) for r, end in ends.items()}
    shared = min(count for count, _ in held.values())
    known = all(len(launches.get(r, ())) == count for r, (count, _) in held.items())
    for at in range(first, first + shared) if known else ():
        prints = {r: launches[r][at].fingerprint for r in held}
        if len(groups := by_size(prints)) > 1:
            return Mismatch(processes, at, groups)
    most = max(count for count, _ in held.values())
    if most == shared:
        return Mismatch(processes, None, by_size(held))
    culprits = tuple(sorted(r for r, (count, _) in held.items() if count < most))
    at = first + shared
    others = tuple(sorted(r for r, (count, _) in held.items() if count > shared))
    leader = next(r for r in others if held[r][0] == most)
    culprits = tuple(r for r in culprits if r not in others)
    return Missing(processes, at, culprits, others, launches[leader].get(at) if known else None)


class _Set:
    """What the journals of one set's ranks show."""

    def __init__(
        self,
        processes: str,
        group: Mapping[int, wire.RankReport],
        reasons: Mapping[int, Reason | None],
        hosts: Mapping[int, str],
    ) -> None:
        self.processes = processes
        self.reasons = reasons
        self.hosts = hosts
        self.launches = {
            rank: {e.seq: e for e in report.launches if e.processes == processes}
            for rank, report in group.items()
        }
        self.counts = {
            rank: tuple(report.state.launches.get(processes, [0, 0]))
            for rank, report in group.items()
        }

    def mismatch(self, is_patient: bool) -> Mismatch | None:
        shared = min(count for count, _ in self.counts.values())
        for seq in sorted({seq for entries in self.launches.values() for seq in entries}):
            prints = {r: e[seq].fingerprint for r, e in self.launches.items() if seq in e}
            if len(groups := by_size(prints)) > 1:
                # What a replay launched was chosen by what others had launched.
                own = {
                    r: p for r, p in prints.items() if self.launches[r][seq].cell_seq != wire.OURS
                }
                groups = of_own if len(of_own := by_size(own)) > 1 else groups
                late = [r for r in self.launches if r not in prints and seq >= self.counts[r][0]]
                is_tie = len(groups[-1]) == len(groups[-2])
                if is_patient and is_tie and any(self.reasons[r] for r in late):
                    return None  # the ranks to come tell who differs from the most
                return Mismatch(self.processes, seq, groups)
        hashes = {h for count, h in self.counts.values() if count == shared}
        if len({c for c, _ in self.counts.values()}) == 1 and len(hashes) > 1:
            groups = by_size({rank: value for rank, (_, value) in self.counts.items()})
            return Mismatch(self.processes, None, groups)
        return None

    def missing(self) -> Missing | None:
        most = max(count for count, _ in self.counts.values())
        behind = {r: c for r, (c, _) in self.counts.items() if c < most}
        culprits = tuple(sorted(r for r in behind if self.reasons[r] is None))
        if not culprits:
            return None
        seq = min(behind[r] for r in culprits)
        others = tuple(sorted(r for r, (c, _) in self.counts.items() if c > seq))
        leader = next(r for r, (c, _) in self.counts.items() if c == most)
        return Missing(self.processes, seq, culprits, others, self.launches[leader].get(seq))

    def suspicion(self) -> Suspicion | None:
        """Who waits for whom, where no rank is known to be unable to launch."""
        most = max(count for count, _ in self.counts.values())
        behind = {r: c for r, (c, _) in self.counts.items() if c < most}
        reasons = {r: reason for r in behind if (reason := self.reasons[r]) is not None}
        if not reasons:
            return None
        seq = min(behind.values())
        waiting = tuple(sorted(r for r, (c, _) in self.counts.items() if c > seq))
        entries = [self.launches[r][seq] for r in waiting if seq in self.launches[r]]
        first = entries[0] if entries else None
        return Suspicion(self.processes, waiting, first, reasons, self.hosts)

    def cells(self, seq: int | None) -> tuple[int, frozenset[int]]:
        """The cell in which launch ``seq`` or an earlier one went wrong, and all that suffer.

        A rank that has skipped a launch in one cell makes the next cell's in its place, so the
        first launch that two ranks made in different cells is where it went wrong.
        """
        if seq is None:
            return 0, frozenset()
        for earlier in sorted({n for entries in self.launches.values() for n in entries}):
            if earlier >= seq:
                break
            made = {e[earlier].cell_seq for e in self.launches.values() if earlier in e}
            made.discard(wire.OURS)  # a replay
            if len(made) > 1 and 0 not in made:
                seq = earlier
        here = {e[seq].cell_seq for e in self.launches.values() if seq in e}
        if here == {wire.OURS}:  # ranks are being brought back: that is for whoever does it
            return wire.OURS, frozenset(here)
        here.discard(wire.OURS)
        after = {n.cell_seq for e in self.launches.values() for n in e.values() if n.seq >= seq}
        return min(here, default=0), frozenset(after)


def _find_crossed(processes: str, group: Mapping[int, wire.RankReport]) -> Crossed:
    """Where ranks first launched programs of two sets in another order."""
    first, second = processes.split(wire.CROSSING)
    sets = (first, second)
    made = {r: [e for e in rep.launches if e.processes in sets] for r, rep in group.items()}
    reach = min(map(len, made.values()))
    made = {rank: entries[len(entries) - reach :] for rank, entries in made.items()}
    for at in range(reach):
        groups = by_size({r: (e[at].processes, e[at].seq) for r, e in made.items()})
        if len(groups) > 1:
            return Crossed(sets, tuple((ranks, made[ranks[0]][at]) for ranks in groups))
    return Crossed(sets, ((tuple(sorted(group)), None),))
