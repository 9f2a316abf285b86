"""Why a cell does not end, and whether its numbers may be trusted. Pure.

The ranks' journals decide, not guesses about time. Programs that a set of processes shares must be
launched by all of them in one order, so there are two certain findings:

- *Different programs*: at one place of a set's sequence two ranks launched different programs. What
  they computed from there on is wrong, whether or not anything hangs.
- *A missing launch*: a rank has made fewer launches than another and can't make more: nothing runs
  or waits on it, whoever sent it, its main thread is free, no thread of the user's lives on it, and
  two looks a moment apart agree. So what the other launched can never complete.

Everything else is a rank that still works, however long it takes; who waits for it is a
``Suspicion``, which is told and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.model import explain, lockstep
from jaxcluster.model.findings import Crossed, Mismatch, Missing, Reason, Report, Suspicion


def may_launch(
    report: wire.RankReport, before: wire.RankReport | None, expected: int = 0
) -> Reason | None:
    """Why this rank may still launch something; None: it can't, until someone sends a cell.

    Args:
      before: what it said a moment ago.
      expected: the seq of the last cell that any notebook has sent to it.
    """
    state = report.state
    if state.state != "idle":
        where = f" line {state.line}" if state.line else ""
        return Reason("cell", f"still runs cell [{state.cell}]{where}")
    if state.queued:
        return Reason("cell", "has a cell of its own to run first")
    if expected > max(state.ended, state.taken):
        return Reason("cell", "is still to get a cell that has been sent")
    if state.background:
        runs = "runs" if len(state.background) == 1 else "run"
        what = ", ".join(state.background[:3])
        return Reason("background", f"runs no cell, but its {what} still {runs}")
    old = before.state if before is not None else None
    if old is None or (old.state, old.queued, old.ended, old.background, old.launches) != (
        "idle", 0, state.ended, [], state.launches,
    ):  # fmt: skip
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
    """
    runners = set(reports if told is None else told)
    reports = {rank: lockstep.with_announced(report) for rank, report in reports.items()}
    counts = {rank: report.state.launches for rank, report in reports.items()}
    over = set(ended)
    before, expected = before or {}, expected or {}
    reasons = {r: may_launch(rep, before.get(r), expected.get(r, 0)) for r, rep in reports.items()}
    hosts = explain.hosts_of(reports)
    suspicion = None
    for processes in lockstep.sets_of(counts):
        group = {r: reports[r] for r in lockstep.members(processes) if r in reports}
        if not lockstep.uneven(counts, processes):
            continue
        if wire.CROSSING in processes:
            if lockstep.crossed(counts, processes):
                parted = _find_crossed(processes, group)
                lines = tuple(explain.tell_crossed(parted, explain.hosts_of(group)))
                first = parted.sets[0]
                return Report("mismatch", first, None, parted.culprits, parted.others, lines)
            continue
        journals = _Set(processes, group, reasons, hosts)
        found: Mismatch | Missing | None
        scene = explain.Scene(
            source, cell, group, journals.launches, over, runners, errors or {}, hosts
        )
        if (found := journals.mismatch()) is not None:
            kind, lines = "mismatch", tuple(explain.tell_mismatch(found, scene))
        elif (found := journals.missing()) is not None:
            kind, lines = "missing", tuple(explain.tell_missing(found, scene))
        else:
            suspicion = suspicion or journals.suspicion()
            continue
        ranks = found.culprits, found.others
        return Report(kind, processes, found.seq, *ranks, lines, *journals.cells(found.seq))
    return suspicion


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

    def mismatch(self) -> Mismatch | None:
        shared = min(count for count, _ in self.counts.values())
        known = [set(entries) for entries in self.launches.values()]
        for seq in sorted(set.intersection(*known)) if known else []:
            if seq >= shared:
                break
            prints = {rank: entries[seq].fingerprint for rank, entries in self.launches.items()}
            if len(groups := _grouped(prints)) > 1:
                return Mismatch(self.processes, seq, groups)
        hashes = {h for count, h in self.counts.values() if count == shared}
        if len({c for c, _ in self.counts.values()}) == 1 and len(hashes) > 1:
            groups = _grouped({rank: value for rank, (_, value) in self.counts.items()})
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
            if len(made) > 1 and 0 not in made:
                seq = earlier
        here = {e[seq].cell_seq for e in self.launches.values() if seq in e}
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
        groups = _grouped({r: (e[at].processes, e[at].seq) for r, e in made.items()})
        if len(groups) > 1:
            return Crossed(sets, tuple((ranks, made[ranks[0]][at]) for ranks in groups))
    return Crossed(sets, ((tuple(sorted(group)), None),))


def _grouped(values: Mapping[int, Any]) -> tuple[tuple[int, ...], ...]:
    """Ranks with equal values, the largest group last."""
    groups: dict[Any, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(value, []).append(rank)
    return tuple(map(tuple, sorted(groups.values(), key=len)))
