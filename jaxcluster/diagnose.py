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

import ast
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxcluster import wire
from jaxcluster.ranks import begin_ranks, name_ranks, several_hosts

Counts = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Report:
    """A certain finding.

    Attributes:
      kind: ``mismatch`` (different programs), ``missing`` (a launch that some ranks skipped) or
        ``circle`` (ranks wait for each other: see ``deadlock``).
      processes: the set of processes concerned, as in the journals.
      seq: the first launch of that set that is not to be trusted; None where the journals no longer
        reach back to it.
      culprits: the ranks that differ from the most.
      others: the other ranks of the set.
      lines: the finding in words.
      cell_seq: the cell in which it went wrong; 0 where that is not known.
      cells: the cells that have launched what is not to be trusted; 0 among them stands for
        launches of no cell: of another thread, or between cells. None: it concerns all.
      is_hopeless: no replay can help; new processes can.
    """

    kind: str
    processes: str
    seq: int | None
    culprits: tuple[int, ...]
    others: tuple[int, ...]
    lines: tuple[str, ...] = field(default=())
    cell_seq: int = 0
    cells: frozenset[int] = frozenset()
    is_hopeless: bool = False

    @property
    def is_releasable(self) -> bool:
        """Whether ranks that wait in a collective are freed by a replay."""
        return self.kind == "missing"

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def concerns(self, seq: int) -> bool:
        """Whether it says something of the cell ``seq``: else it is another cell's finding."""
        return not self.cells or seq == self.cell_seq or bool({0, seq} & self.cells)


@dataclass(frozen=True)
class Reason:
    """Why a rank may still launch something.

    Attributes:
      kind: ``cell`` (one runs or waits), ``background`` (a thread, task or timer lives), ``busy``
        (its main thread does something else), or ``moment`` (a second look must tell).
      message: the rest of a sentence that begins with the rank.
    """

    kind: str
    message: str


@dataclass(frozen=True)
class Suspicion:
    """Ranks wait for a launch that others have not made, and may still make.

    Attributes:
      waiting: the ranks that have made it.
      launch: what they wait for, if a journal still has it.
      reasons: why each of the others may still make it.
      hosts: of the ranks, where there are several.
    """

    processes: str
    waiting: tuple[int, ...]
    launch: wire.Launch | None
    reasons: Mapping[int, Reason]
    hosts: Mapping[int, str] = field(default_factory=dict)

    def has(self, kind: str) -> bool:
        return any(reason.kind == kind for reason in self.reasons.values())

    def tell(self, waited_s: float) -> str:
        """Who waits for whom, in one line."""
        wanted = "a launch that has not come"
        if (launch := self.launch) is not None:
            wanted = f"launch {launch.seq + 1} ({launch.name})"
        verb = "waits" if len(self.waiting) == 1 else "wait"
        messages: dict[str, list[int]] = {}
        for rank, reason in sorted(self.reasons.items()):
            messages.setdefault(reason.message, []).append(rank)
        others = "; ".join(
            f"{name_ranks(ranks, self.hosts)} {what}" for what, ranks in messages.items()
        )
        who = begin_ranks(self.waiting, self.hosts)
        return f"{who} {verb} for {wanted} since some {waited_s:.0f} s; {others}."


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
        return Reason("background", f"runs no cell, but {what} of its still {runs}")
    old = before.state if before is not None else None
    if old is None or (old.state, old.queued, old.ended, old.background, old.launches) != (
        "idle", 0, state.ended, [], state.launches,
    ):  # fmt: skip
        return Reason("moment", "has just ended its cell")
    if state.probes <= old.probes:
        return Reason("busy", "runs no cell, but its main thread is busy with something else")
    return None


def unexplained(why: str) -> Report:
    """The finding where ranks are not back in lockstep and nobody in particular is to blame."""
    return Report("missing", "", None, (), (), (f"The ranks have diverged: {why}.",))


def in_lockstep(counts: Mapping[int, Counts]) -> bool:
    """Whether all ranks agree on every set of processes that they are members of."""
    return not any(uneven(counts, processes) for processes in sets_of(counts))


def sets_of(counts: Mapping[int, Counts]) -> list[str]:
    """The sets of processes that have launched programs together; last, the pairs that overlap."""
    found = {processes for per_rank in counts.values() for processes in per_rank}
    return sorted(found, key=lambda processes: (wire.CROSSING in processes, processes))


def members(processes: str) -> list[int]:
    """The ranks of a set, or those that are in both sets of a pair."""
    first, *others = [part.split(",") for part in processes.split(wire.CROSSING)]
    return [int(rank) for rank in first if all(rank in other for other in others)]


def crossed(counts: Mapping[int, Counts], processes: str) -> bool:
    """Whether ranks launched the same programs of two sets that overlap, in another order."""
    if wire.CROSSING not in processes or not uneven(counts, processes):
        return False
    both = {r: counts[r] for r in members(processes) if r in counts}
    return not any(uneven(both, one) for one in processes.split(wire.CROSSING))


def uneven(counts: Mapping[int, Counts], processes: str) -> bool:
    """Whether members of a set have launched another number of its programs, or others."""
    held = [tuple(counts[r].get(processes, (0, 0))) for r in members(processes) if r in counts]
    return len(set(held)) > 1


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
    reports = {rank: with_announced(report) for rank, report in reports.items()}
    counts = {rank: report.state.launches for rank, report in reports.items()}
    over = set(ended)
    before, expected = before or {}, expected or {}
    reasons = {r: may_launch(rep, before.get(r), expected.get(r, 0)) for r, rep in reports.items()}
    suspicion = None
    for processes in sets_of(counts):
        group = {r: reports[r] for r in members(processes) if r in reports}
        if not uneven(counts, processes):
            continue
        if wire.CROSSING in processes:
            if crossed(counts, processes):
                return _tell_crossed(processes, group)
            continue
        teller = _Teller(
            processes, group, over, source, cell, errors or {}, runners, reasons, hosts_of(reports)
        )
        if (found := teller.mismatch()) is not None or (found := teller.missing()) is not None:
            return found
        suspicion = suspicion or teller.suspicion()
    return suspicion


def _tell_crossed(processes: str, group: Mapping[int, wire.RankReport]) -> Report:
    """The finding where programs of two sets came in another order."""
    sets, hosts = processes.split(wire.CROSSING), hosts_of(group)
    made = {r: [e for e in rep.launches if e.processes in sets] for r, rep in group.items()}
    reach = min(map(len, made.values()))
    made = {rank: entries[len(entries) - reach :] for rank, entries in made.items()}
    places: dict[tuple[str, int], list[int]] = {}
    for at in range(reach):
        places = {}
        for rank, entries in made.items():
            places.setdefault((entries[at].processes, entries[at].seq), []).append(rank)
        if len(places) > 1:
            break
    groups = sorted(places.values(), key=len) if len(places) > 1 else [sorted(group)]
    named = " and of ".join(name_ranks(map(int, one.split(","))) for one in sets)
    lines = [f"The ranks launched programs of {named} in another order:"]
    if len(groups) > 1:
        for ranks in reversed(groups):
            entry = made[ranks[0]][at]
            whose = name_ranks(map(int, entry.processes.split(",")))
            who = name_ranks(ranks, hosts)
            lines.append(f"  {who}: first {_Teller._program(entry)} (of {whose})")
    lines.append(
        "Hint: programs that share processes meet in them, so all of these must launch them in one "
        "order. Their numbers may be mixed up."
    )
    culprits = tuple(sorted(r for ranks in groups[:-1] for r in ranks))
    return Report("mismatch", sets[0], None, culprits, tuple(sorted(groups[-1])), tuple(lines))


def with_announced(report: wire.RankReport) -> wire.RankReport:
    """In strict mode: count the launch that a rank waits to be allowed as if it were made."""
    entry = report.announced
    if entry is None:
        return report
    count, value = report.state.launches.get(entry.processes, [0, 0])
    held = [count + 1, wire.next_hash(value, entry.fingerprint)]
    launches = {**report.state.launches, entry.processes: held}
    state = dataclasses.replace(report.state, launches=launches)
    return dataclasses.replace(report, state=state, launches=[*report.launches, entry])


def hosts_of(reports: Mapping[int, wire.RankReport]) -> dict[int, str]:
    """The ranks' hosts, where there are several."""
    return several_hosts({rank: report.state.hostname for rank, report in reports.items()})


class _Teller:
    """Finds and words one set's finding."""

    def __init__(
        self,
        processes: str,
        group: Mapping[int, wire.RankReport],
        over: set[int],
        source: str,
        cell: int,
        errors: Mapping[int, wire.ErrorInfo],
        told: set[int],
        reasons: Mapping[int, Reason | None],
        hosts: Mapping[int, str],
    ) -> None:
        self.hosts = hosts
        self.told = told
        self.reasons = reasons
        self.processes = processes
        self.group = group
        self.over = over
        self.source = source
        self.cell = cell
        self.errors = errors
        self.launches = {
            rank: {e.seq: e for e in report.launches if e.processes == processes}
            for rank, report in group.items()
        }
        self.counts = {
            rank: tuple(report.state.launches.get(processes, [0, 0]))
            for rank, report in group.items()
        }

    # ------------------------------------------------------------------ different programs

    def mismatch(self) -> Report | None:
        shared = min(count for count, _ in self.counts.values())
        known = [set(entries) for entries in self.launches.values()]
        for seq in sorted(set.intersection(*known)) if known else []:
            if seq >= shared:
                break
            prints: dict[int, list[int]] = {}
            for rank, entries in self.launches.items():
                prints.setdefault(entries[seq].fingerprint, []).append(rank)
            if len(prints) > 1:
                return self._tell_mismatch(seq, sorted(prints.values(), key=len))
        hashes = {h for count, h in self.counts.values() if count == shared}
        if len({c for c, _ in self.counts.values()}) == 1 and len(hashes) > 1:
            by_hash: dict[int, list[int]] = {}
            for rank, (_, value) in self.counts.items():
                by_hash.setdefault(value, []).append(rank)
            return self._tell_mismatch(None, sorted(by_hash.values(), key=len))
        return None

    def _tell_mismatch(self, seq: int | None, groups: list[list[int]]) -> Report:
        culprits = tuple(sorted(r for ranks in groups[:-1] for r in ranks))
        others = tuple(sorted(groups[-1]))
        if seq is None:
            who = f"{begin_ranks(culprits, self.hosts)} and {name_ranks(others, self.hosts)}"
            lines = [f"{who} launched different programs, longer ago than the journals reach."]
            return Report("mismatch", self.processes, None, culprits, others, tuple(lines))
        cell_seq, cells = self._cells(seq)
        lines = [f"The ranks launched different programs as launch {seq + 1}:"]
        for ranks in reversed(groups):
            program = self._program(self.launches[ranks[0]][seq])
            lines.append(f"  {name_ranks(ranks, self.hosts)}: {program}")
        lines += self._scalars()
        lines.append("Hint: " + self._mismatch_hint(seq, groups))
        return Report(
            "mismatch", self.processes, seq, culprits, others, tuple(lines), cell_seq, cells
        )

    def _mismatch_hint(self, seq: int, groups: list[list[int]]) -> str:
        first, second = (self.launches[ranks[0]] for ranks in (groups[-1], groups[0]))
        a, b = first[seq], second[seq]
        if any(wire.BROKEN_OFF in name for name in (a.name, b.name)):
            return (
                "where a program is broken off the others wait for it in its collectives, or go on "
                "with what that process does not have."
            )
        if a.name == b.name and a.signature != b.signature:
            return (
                f"the shapes differ ({a.signature or '?'} against {b.signature or '?'}): pad or "
                "drop so that every process passes the same shape."
            )
        if a.name == b.name:
            return (
                "the same call compiled to different programs: do constants, closures, jax.config "
                "or environment variables differ between the processes?"
            )
        later_a = [first[s].name for s in sorted(first) if s >= seq]
        later_b = [second[s].name for s in sorted(second) if s >= seq]
        if len(later_a) > 1 and sorted(later_a) == sorted(later_b):
            return (
                "the same programs in another order: iterating over a set, a dict of other origin "
                "or a directory differs between processes. Sort first."
            )
        own = [entry.line for entry in (b, a) if entry.cell == self.cell]
        branch = next(filter(None, map(self._branch, own)), "")
        return branch or "a branch that depends on the rank, or on data that differs between ranks."

    # ------------------------------------------------------------------ a missing launch

    def missing(self) -> Report | None:
        most = max(count for count, _ in self.counts.values())
        behind = {r: c for r, (c, _) in self.counts.items() if c < most}
        culprits = tuple(sorted(r for r in behind if self.reasons[r] is None))
        if not culprits:
            return None
        seq = min(behind[r] for r in culprits)
        others = tuple(sorted(r for r, (c, _) in self.counts.items() if c > seq))
        leader = next(r for r, (c, _) in self.counts.items() if c == most)
        wanted = self.launches[leader].get(seq)
        lines = []
        for ranks in self._by_place(others):
            lines.append(self._tell_waiting(ranks, wanted))
        skipped: dict[tuple[str, str], list[int]] = {}
        for rank in culprits:
            skipped.setdefault(self._tell_skipped(rank), []).append(rank)
        for (what, last), ranks in skipped.items():
            one = len(ranks) == 1
            told = f"{'its' if one else 'their'} last launch: {last}"
            if not last:
                told = f"{'it has' if one else 'they have'} launched none"
            lines.append(f"{begin_ranks(ranks, self.hosts)} {what} ({told}).")
        lines += self._scalars()
        if hint := self._missing_hint(culprits, wanted):
            lines.append(f"Hint: {hint}")
        cell_seq, cells = self._cells(seq)
        return Report(
            "missing", self.processes, seq, culprits, others, tuple(lines), cell_seq, cells
        )

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

    def _cells(self, seq: int) -> tuple[int, frozenset[int]]:
        """The cell in which launch ``seq`` or an earlier one went wrong, and all that suffer.

        A rank that has skipped a launch in one cell makes the next cell's in its place, so the
        first launch that two ranks made in different cells is where it went wrong.
        """
        for earlier in sorted({n for entries in self.launches.values() for n in entries}):
            if earlier >= seq:
                break
            made = {e[earlier].cell_seq for e in self.launches.values() if earlier in e}
            if len(made) > 1 and 0 not in made:
                seq = earlier
        here = {e[seq].cell_seq for e in self.launches.values() if seq in e}
        after = {n.cell_seq for e in self.launches.values() for n in e.values() if n.seq >= seq}
        return min(here, default=0), frozenset(after)

    def _by_place(self, ranks: Sequence[int]) -> list[list[int]]:
        places: dict[tuple[object, ...], list[int]] = {}
        for rank in ranks:
            state = self.group[rank].state
            places.setdefault((rank in self.over, state.line), []).append(rank)
        return list(places.values())

    def _tell_waiting(self, ranks: Sequence[int], wanted: wire.Launch | None) -> str:
        state, who = self.group[ranks[0]].state, begin_ranks(ranks, self.hosts)
        launch = ""
        if wanted is not None:
            launch = f" (launch {wanted.seq + 1}: {wanted.name})"
        one = len(ranks) == 1
        if ranks[0] in self.over:
            line = f" at cell [{wanted.cell}] line {wanted.line}" if wanted and wanted.line else ""
            call = self._call(wanted.line) if wanted and wanted.cell == self.cell else ""
            return f"{who} launched {call or 'a program'}{line}{launch}."
        verb = "waits" if one else "wait"
        where = f"cell [{state.cell}] line {state.line}" if state.line else f"cell [{self.cell}]"
        own = wanted is not None and wanted.cell == self.cell
        if wanted is not None and own and wanted.line != state.line:
            call = self._call(wanted.line) or "the program"
            return f"{who} {verb} at {where} for {call} of line {wanted.line}{launch}."
        call = self._call(state.line) or state.frame.partition(" ")[0]
        return f"{who} {verb} in {call} at {where}{launch}."

    def _tell_skipped(self, rank: int) -> tuple[str, str]:
        """How a rank came to skip a launch, and its last one ("" where it has made none)."""
        entries = self.launches[rank]
        last = ""
        if entries:
            entry = entries[max(entries)]
            last = f"{entry.seq + 1}, {self._program(entry)}"
        if (error := self.errors.get(rank)) is not None:
            line = f" on line {error.lineno}" if error.lineno else ""
            return f"raised {error.ename}{line} before it", last
        if self.group[rank].state.seq == 0 and rank not in self.told:
            return "did not run the cell", last
        return "finished the cell without it", last

    def _missing_hint(self, culprits: Sequence[int], wanted: wire.Launch | None) -> str:
        if any(r not in self.told for r in culprits):
            return "a program that spans processes must be launched by all of them: no --ranks."
        if any(r in self.errors for r in culprits):
            return "an error on some ranks only: check its cause on all of them before the launch."
        if wanted is None or wanted.cell != self.cell:
            return ""
        if branch := self._branch(wanted.line):
            return branch
        if loop := self._enclosing(wanted.line, (ast.For, ast.While)):
            return (
                f"the loop on line {loop.lineno} ran more often on some ranks: give every process "
                "the same number of steps (the last batch is the usual cause)."
            )
        return ""

    # ------------------------------------------------------------------ messages

    @staticmethod
    def _program(entry: wire.Launch) -> str:
        place = f", cell [{entry.cell}] line {entry.line}" if entry.cell is not None else ""
        signature = f"  {entry.signature}" if entry.signature else ""
        return f"{entry.name}{place}{signature}"

    def _scalars(self) -> list[str]:
        return _tell_scalars(self.group)

    def _call(self, line: int | None) -> str:
        return _call_at(self.source, line)

    def _enclosing(
        self, line: int | None, kinds: tuple[type[ast.stmt], ...]
    ) -> ast.If | ast.For | ast.While | None:
        tree = _tree(self.source)
        if tree is None or line is None:
            return None
        found = [
            node
            for node in ast.walk(tree)
            if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0)
        ]
        inner = max(found, key=lambda n: n.lineno, default=None)
        return inner if isinstance(inner, (ast.If, ast.For, ast.While)) else None

    def _branch(self, line: int | None) -> str:
        node = self._enclosing(line, (ast.If, ast.While))
        if node is None or isinstance(node, ast.For) or line is None:
            return ""
        test = ast.unparse(node.test)
        word = "while" if isinstance(node, ast.While) else "if"
        here = f"line {line}" if node.lineno == line else f"line {node.lineno}"
        if isinstance(node, ast.If) and any(
            part.lineno <= line <= (part.end_lineno or 0) for part in node.orelse
        ):
            return f"{here} runs it only where not `{test}`."
        call = self._call(line) or "it"
        return f"{here} runs {call} only `{word} {test}`."


# What JAX says, and what it means on a cluster.
KIND_HINTS = (
    (
        "spans non-addressable",
        "An array that spans processes can't be fetched by one of them. End the cell with it to "
        "see it whole, or %pull it into the notebook.",
    ),
    (
        "distributed.initialize should only be called once",
        "%jaxcluster start has called jax.distributed.initialize on every rank already: leave the "
        "call away.",
    ),
    (
        "distributed.initialize() must be called before",
        "%jaxcluster start has called jax.distributed.initialize on every rank already: leave the "
        "call away.",
    ),
    (
        "must not be called on a rank",
        "Leave the call away: %jaxcluster stop ends the cluster, %jaxcluster restart gives it new "
        "processes.",
    ),
    (
        "config should be updated before backends are initialized",
        "The ranks have their devices from their start on: %jaxcluster stop, then for example "
        "%jaxcluster start --devices-per-process 4.",
    ),
)


def kind_hints(message: str) -> list[str]:
    """What to add to an error of JAX."""
    return [hint for mark, hint in KIND_HINTS if mark in message]


def _tree(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:  # IPython's own syntax: then there is no hint
        return None


def _call_at(source: str, line: int | None) -> str:
    """The outermost call on a line, as it is written: ``jnp.sum``."""
    tree = _tree(source)
    if tree is None or line is None:
        return ""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    printing = ("print", "float", "int", "str", "repr", "bool", "range", "len", "enumerate")
    for node in sorted(calls, key=lambda n: n.col_offset):
        name = ast.unparse(node.func)
        if name not in printing and len(name) < 60:
            return name
    return ""


def _tell_scalars(reports: Mapping[int, wire.RankReport]) -> list[str]:
    """Small values of the cell's names that differ between the ranks."""
    names = sorted({n for report in reports.values() for n in report.locals})
    lines = []
    for name in names:
        values: dict[str, list[int]] = {}
        for rank, report in reports.items():
            if name in report.locals:
                values.setdefault(report.locals[name], []).append(rank)
        if 1 < len(values) <= 4 and sum(map(len, values.values())) == len(reports):
            told = ", ".join(f"{v} on {name_ranks(r)}" for v, r in values.items())
            lines.append(f"{name} = {told}.")
    return lines[:3]


def tell_working(
    reports: Mapping[int, wire.RankReport],
    ended: Iterable[int],
    waited_s: float,
    hosts: Mapping[int, str] | None = None,
) -> list[str]:
    """One line for each place where ranks still are while others have ended the cell.

    Args:
      hosts: of all ranks, where there are several; else those of ``reports``.
    """
    places: dict[str, list[int]] = {}
    hosts = hosts_of(reports) if hosts is None else hosts
    for rank, report in sorted(reports.items()):
        state = report.state
        where = f"cell [{state.cell}] line {state.line}" if state.line else state.frame or "no cell"
        places.setdefault(where, []).append(rank)
    lines = [
        f"{begin_ranks(ranks, hosts)} still {'works' if len(ranks) == 1 else 'work'} at {where} "
        f"({waited_s:.0f} s)"
        for where, ranks in places.items()
    ]
    done = list(ended)
    have = "has" if len(done) == 1 else "have"
    return [f"{line}." for line in lines[:-1]] + [
        f"{lines[-1]}; {name_ranks(done, hosts)} {have} ended the cell."
    ]


def tell_places(
    reports: Mapping[int, wire.RankReport], ranks: Iterable[int], source: str, cell: int
) -> list[str]:
    """One line for each place of a cell where some of these ranks are, or were when asked."""
    places: dict[str, list[int]] = {}
    hosts = hosts_of(reports)
    for rank in sorted(ranks):
        if (report := reports.get(rank)) is None:
            where = "gave no sign of life"
        elif (state := report.state).state != "running":
            where = "{had} ended the cell"
        elif state.line:
            call = _call_at(source, state.line) if state.cell == cell else ""
            where = "{was} " + f"{f'in {call} ' if call else ''}at cell [{state.cell}] "
            where += f"line {state.line}"
        else:
            where = "{was} in " + (state.frame.partition(" ")[0] or f"cell [{cell}]")
        places.setdefault(where, []).append(rank)
    lines = []
    for where, group in places.items():
        was = "was" if len(group) == 1 else "were"
        said = where.replace("{was}", was).replace("{had}", "had")
        lines.append(f"{begin_ranks(group, hosts)} {said}.")
    return lines + _tell_scalars({r: reports[r] for r in ranks if r in reports})
