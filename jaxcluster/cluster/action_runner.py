"""Carries out what is decided about one cell (``lockstep``), and asks what has to be known."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jaxcluster import lockstep, wire
from jaxcluster.cluster import events as cluster_events
from jaxcluster.cluster import replay, selfcheck, undoing, unresponsive
from jaxcluster.cluster.between_cells import Notebook
from jaxcluster.cluster.restart import Restored
from jaxcluster.cluster.starting import Starting
from jaxcluster.cluster.world import World
from jaxcluster.lockstep import actions, events
from jaxcluster.lockstep.availability import ClusterCondition, RecoveryMode
from jaxcluster.lockstep.cell import Cell
from jaxcluster.lockstep.facts import Facts, Recovered, Replayed, Why
from jaxcluster.lockstep.settling import Steps, T
from jaxcluster.lockstep.undone import Undone
from jaxcluster.model import rewrite
from jaxcluster.model.life import Life
from jaxcluster.model.lineage import Lineage
from jaxcluster.model.notices import ClusterWarning, Passing, Warned, warn
from jaxcluster.model.outputs import CellRecord
from jaxcluster.records.lastreport import Reports
from jaxcluster.records.saved_states import Kept
from jaxcluster.wire.link import Event, Sink, replies
from jaxcluster.wire.ops.cells import Interrupt
from jaxcluster.wire.ops.lockstep import State
from jaxcluster.wire.ops.state import ALREADY_UNDONE

AGAIN_S = 0.1  # between looks at ranks that have ended a cell with uneven counts
POLL_DEPTH = 256  # launches of each rank


class Sent(Protocol):
    """A cell that was sent, as far as another one knows it.

    It may have been stopped, and may be waited for by nobody.
    """

    @property
    def record(self) -> CellRecord: ...
    @property
    def is_stopped(self) -> bool: ...
    def carry_unwaited(self) -> None: ...
    def stop(self) -> None: ...
    def withdraw(self, why: str) -> None: ...


class Owner(Notebook, Protocol):
    """Whose cell it is: a ``Cluster``, as far as it is known to what it has."""

    kept: Kept | None
    life: Life
    recovered: str
    past_reports: Reports
    lineage: Lineage

    @property
    def name(self) -> str: ...
    @property
    def condition(self) -> ClusterCondition: ...
    @property
    def can_restart(self) -> bool: ...
    @property
    def recovery(self) -> RecoveryMode: ...
    @property
    def changing(self) -> contextlib.AbstractContextManager[object]: ...
    @property
    def is_restarting(self) -> bool: ...
    @property
    def restored(self) -> Restored | None: ...
    @property
    def down(self) -> str: ...
    @property
    def down_hint(self) -> str: ...
    @property
    def last(self) -> CellRecord | None: ...
    @property
    def cells(self) -> Sequence[Sent]: ...
    @property
    def sent(self) -> Sequence[Sent]: ...
    def ensure_open(self) -> None: ...
    def press_stop(self) -> None: ...
    def recover(self, evidence: str, *, message: str, when: str, undo: bool) -> str: ...
    def restart(self, *, clean: bool = False, when: str = "", undo: bool = False) -> str: ...
    def become(self, spec: wire.ClusterSpec) -> None: ...
    def check_returns(self) -> None: ...
    def leave_down(self, why: str) -> None: ...
    def respawn(
        self, progress: Callable[[str], None], watch: Callable[[Starting | None], None]
    ) -> None: ...
    def equip(self) -> None: ...


class ActionRunner:
    """Carries out the actions of one cell.

    Attributes:
      on_notice: told what is said under the cell; None where nobody listens.
      on_status: told the one line that says what the cell waits for, each time it is another one,
        and "" where it waits for nothing; without it ``on_notice`` is told, now and then.
      warned: the first warning that is to be raised as an error, at the cell's end.
      terminates: an interrupt is SIGTERM's, and goes to what handles that on the ranks.
      interrupts: the ids of the interrupts that were sent, whose answers come to the sink.
    """

    def __init__(self, cluster: Owner, cell: Cell, sink: Sink) -> None:
        self.on_notice: Callable[[str], None] | None = None
        self.on_status: Callable[[str], None] | None = None
        self.terminates = False
        self.warned: ClusterWarning | None = None
        self.interrupts: set[str] = set()
        self._cluster, self._cell, self._sink = cluster, cell, sink
        self._pinned: World | None = None
        self._replay: replay.Replay | None = None
        processes = cluster.world.processes
        self._silences = unresponsive.Silences(processes.look_at, processes.why_unseen)

    def carry(self, steps: Steps[T], world: World | None = None) -> T:
        """Carry through what is decided step by step, on the ranks of one ``world``.

        By default these are the ranks that there are at its begin.
        """
        self._pinned = world or self._cluster.world
        return lockstep.carry(steps, self.do)

    def do(self, action: actions.Action) -> Any:
        """Carry one action out; returns what was asked for."""
        cluster, world, record = self._cluster, self._world, self._cell.record
        match action:
            case actions.LookAround():
                return self._facts(world)
            case actions.KeepCounts(counts, only):
                if only:
                    world.counts.clear()
                world.counts.update(counts)
            case actions.Ask():
                return self._look(world, action)
            case actions.AskStates():
                return world.status()
            case actions.AskWhere(ranks):
                return self._locate(world, ranks)
            case actions.Notice(text):
                self.say(text)
            case actions.Status(line):
                if self.on_status is not None:
                    self.on_status(line.text)
                elif self.on_notice is not None and line.for_logs:
                    self.on_notice(Passing(f"{line.text}\n"))
            case actions.Changed():
                cluster_events.tell()
            case actions.Found():
                cluster.recovered = ""
                cluster_events.tell()
            case actions.AddPending(found):
                world.pending_launches.extend(found)
            case actions.DropPending(None):
                world.pending_launches.clear()
            case actions.DropPending(settled):
                for one in settled or ():
                    with contextlib.suppress(ValueError):  # another cell's thread has
                        world.pending_launches.remove(one)
            case actions.Diverge(report):
                world.divergence = report
                cluster.recovered = ""
            case actions.PressStop():
                self._sink.put(Event(-1, "press", "", None))
            case actions.Interrupt(ranks, spare):
                each = dict.fromkeys(ranks, Interrupt(record.seq, spare, self.terminates))
                self.interrupts |= {*world.link.request_each(each, sink=self._sink)}
            case actions.CountAnew():
                replay.count_anew(world.link, action)
            case actions.Prepare():
                selfcheck.prepare(world.link)
            case actions.StepReplay():
                begun = self._begun_replay(world)
                begun.step(unresponsive.ANSWER_S, world.turns.last_cells())
                ran = sum(begun.core.ran.values())
                return events.Stepped(time.monotonic(), begun.core.stuck, ran, begun.core.is_open)
            case actions.BringBack(is_patient, missing):
                begun = self._begun_replay(world)
                core = begun.core
                core.is_patient, core.missing = is_patient, missing
                how = begun.bring_back(world.turns)
                return Replayed(how, core.why_not, core.ran, core.counts, core.is_under_way)
            case actions.Undo():
                return self._undo(world, action)
            case actions.TakeBackOthers(cells):
                return self._take_back_others(world, cells)
            case actions.OpenGates(seqs):
                world.open_gates(seqs)
            case actions.WithdrawBehind():
                self._withdraw_behind()
            case actions.EndRank(rank, why):
                world.end_rank(rank, why)
            case actions.Recover(said, told, undo, when):
                return self._recover(said, told, undo, when)
            case actions.WatchSilent(ranks):
                self._silences.look(ranks)
            case actions.AskSilent(ranks):
                silent = unresponsive.silent_ranks(world.link, ranks)
                whys = self._silences.why(sorted(silent))
                return {r: Why(y.message, y.may_pass, y.is_hung) for r, y in whys.items()}
            case actions.ExplainSilent(ranks):
                lines = unresponsive.tell(self._silences.why(ranks))
                return events.Explained(time.monotonic(), tuple(lines))
            case actions.ReadLogEnd(rank):
                return world.say_log_end(rank)
            case actions.Rest():
                self._rest()
        return None

    @property
    def _world(self) -> World:
        """The ranks: those of now, but at the cell's end those that it has ended on."""
        return self._pinned or self._cluster.world

    def _facts(self, world: World, sent: dict[int, int] | None = None) -> Facts:
        cluster = self._cluster
        return Facts(
            time.monotonic(),
            tuple(world.link.ranks),
            {**world.link.dead, **world.dead},
            dict(world.last_launches),
            frozenset([cell.record.seq for cell in cluster.cells]),
            sent or {},
            dict(world.counts),
            tuple(world.pending_launches),
            world.divergence,
            world.hosts,
            stopped=frozenset([cell.record.seq for cell in cluster.sent if cell.is_stopped]),
            is_closed=cluster.closed,
            is_over=world.is_over,
            is_cut=bool(world.unreachable),
            gives_new=cluster.recovery == "auto",
            can_give_new=cluster.can_restart,
        )

    def _look(self, world: World, ask: actions.Ask) -> events.Looked:
        names = () if ask.is_brief else rewrite.assigned_names(self._cell.record.source)
        depth = replay.JOURNAL_DEPTH  # also where an earlier cell's launch is searched for
        if ask.why != "end" and not world.pending_launches:
            depth = POLL_DEPTH
        reports = replay.ask_reports(world.link, names, depth, ask.timeout_s)
        facts = self._facts(world, world.turns.last_cells())
        return events.Looked(facts.now, ask, reports, facts)

    def _begun_replay(self, world: World) -> replay.Replay:
        self._replay = self._replay or replay.Replay(world.link, self._cell.record.seq)
        return self._replay

    def _locate(self, world: World, ranks: Sequence[int]) -> events.Located:
        answers = world.link.gather(ranks, State(), timeout_s=unresponsive.ANSWER_S)
        whys = self._silences.why([rank for rank in ranks if rank not in answers])
        told = {rank: why.message for rank, why in whys.items()}
        return events.Located(time.monotonic(), ranks, replies(answers), told)

    def say(self, text: str) -> None:
        """Say it under the cell. Where nobody listens, Python warns of what no error repeats."""
        if self.on_notice is not None:
            self.on_notice(text)
        elif isinstance(text, Warned):
            try:
                warn(text)
            except ClusterWarning as error:  # made of it by a filter: the cell comes to its end
                self.warned = self.warned or error

    def _undo(self, world: World, asked: actions.Undo) -> Undone:
        record = self._cell.record
        undone = self._take_back(world, record.seq, record.execution_count, asked)
        if undone.refused == ALREADY_UNDONE:  # another notebook took this one for gone
            undone = Undone(by_another=True)
        if not undone.refused:
            record.undone = True
        return undone

    def _take_back_others(self, world: World, cells: Mapping[int, int | None]) -> events.TookBack:
        alive = tuple(rank for rank in world.link.ranks if rank not in world.dead)
        lines = []
        for seq in sorted(cells, reverse=True):
            undone = self._take_back(world, seq, cells[seq] or 0, actions.Undo(alive, True))
            if undone.refused != ALREADY_UNDONE:
                lines.append(undone.told(_named(cells[seq], seq in world.own_cells)))
        return events.TookBack(time.monotonic(), tuple(lines))

    def _take_back(self, world: World, seq: int, number: int, asked: actions.Undo) -> Undone:
        # Beside new processes some ranks would be saved before the undo, and others after it.
        with self._cluster.changing:
            return undoing.undo(world, seq, number, asked)

    def _withdraw_behind(self) -> None:
        """Don't run what waits on the ranks for the end of this cell, which was taken back."""
        record = self._cell.record
        why = f"cell [{record.execution_count}], which it waited for, did not complete"
        for later in self._cluster.cells:
            behind = later.record.seq > record.seq
            if behind and wire.cell_ends.guards(record.ranks, later.record.ranks):
                later.withdraw(why)

    def _recover(self, evidence: str, message: str, undo: bool, when: str) -> Recovered:
        cluster = self._cluster
        line = cluster.recover(evidence, message=message, when=when, undo=undo)
        is_replaced = cluster.world is not self._pinned
        self._pinned = cluster.world
        restored = cluster.restored
        if restored is None or str(restored) not in line:
            return Recovered(line, is_replaced=is_replaced)
        names = frozenset({*restored.older, *restored.lost})
        is_undone = self._cell.record.seq in restored.undone
        return Recovered(line, names, is_replaced, is_undone, frozenset(restored.kept))

    def _rest(self) -> None:
        """Wait a moment between looks; the stop button ends it."""
        try:
            event = self._sink.get(timeout=AGAIN_S)
        except queue.Empty:
            return
        if event.op == "stop":
            raise KeyboardInterrupt


def _named(number: int | None, is_own: bool) -> str:
    """What another cell is called, by the number that its notebook gives it."""
    if number is None:
        return "An earlier cell" if is_own else "A cell of another notebook"
    return f"Cell [{number}]" if is_own else f"Cell [{number}] of another notebook"
