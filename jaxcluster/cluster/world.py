"""One generation of a cluster's ranks: their processes, sockets and states.

A restart ends one world and makes the next, for the same cluster. Functions that work on ranks take
a world, and don't know its cluster.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from jaxcluster import wire
from jaxcluster.agreement.messages import CellSpec, Looked
from jaxcluster.cluster import events
from jaxcluster.errors import LaunchError, RankHung, RecoveryError, UsageError
from jaxcluster.host.procfs import Exits, Silence
from jaxcluster.hosts.allocation import Allocation
from jaxcluster.hosts.fleet import Host
from jaxcluster.hosts.processes import Processes
from jaxcluster.hosts.records import claims, registry
from jaxcluster.model import crash_log
from jaxcluster.ranks import name_ranks, say_each, several_hosts
from jaxcluster.wire import forks
from jaxcluster.wire.forks import RESTARTED, STOPPED
from jaxcluster.wire.link import Event, Request, Sink, replies, unwrap
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.cells import Interrupt
from jaxcluster.wire.ops.status import Look, State
from jaxcluster.wire.sockets import Context

R = TypeVar("R")

LOG_END_NBYTES = 1 << 18  # of a log that are read for the end of a rank's
# After this time a rank that says nothing counts as one that never will. A machine had many times
# more work than processors. There a call that keeps the GIL for 0.2 s took 5 s.
PATIENCE_S = 15.0
ASK_S = 2.0  # for answers that a control channel gives at once
# How jaxlib ends a process that has lost the coordinator: it aborts, and a thread that is just in a
# collective may crash of that first.
BY_JAX = (signal.SIGABRT, signal.SIGSEGV)


class World:
    """The ranks of one cluster, from their start to their end.

    Args:
      processes: their processes, started here or elsewhere.
      allocation: what they run on, where this process starts them.
      record: who they are, where another one has.

    Attributes:
      link: the way to them.
      dead: the ranks whose processes have ended, and why.
      is_torn: ranks sit in a launch that can't end, so no cell may run.
      is_readable: this process may read the memory of ranks here, as far as is known.
      unreachable: the hosts that can't be reached from here and may live, and why.
      coordinator_died: how JAX's coordination service has ended; "" while it serves.
      controller_died: how ipyparallel's controller has.
      ended_by: another process: why it has ended them; "" while none has.
      names: the names that each rank has, as last heard.
      hosts: of the ranks, where there are several; for messages.
      started_s: how long the start took; 0 where another process has started them.
      is_ours: whether this process has started it.
      is_over: whether it has ended, or was left.
      is_ending: whether another process ends it.
      check: called before ranks are asked anything; raises where they can't be.
      who: this process, for other notebooks.
      on_stopping: called when another process stops the cluster. Any thread.
    """

    record: registry.ClusterRecord

    def __init__(
        self,
        processes: Processes,
        allocation: Allocation | None = None,
        record: registry.ClusterRecord | None = None,
    ) -> None:
        self.processes, self.fleet, self.allocation = processes, processes.fleet, allocation
        self.num_processes, self.is_ours = processes.spec.num_processes, processes.is_ours
        self.link = processes.connect()
        self.hosts: dict[int, str] = {}
        self.dead: dict[int, wire.Death] = {}
        self.is_torn = self.is_over = self.is_ending = False
        self.is_readable = True
        self.coordinator_died = self.controller_died = self.ended_by = ""
        self.unreachable: dict[str, str] = {}
        self.names: dict[int, set[str]] = {}
        self.started_s = 0.0
        self.check: Callable[[], None] = lambda: None
        self.on_stopping: Callable[[], None] = lambda: None
        self._exits = Exits()
        self.who, self._owner = who_we_are(), f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._turns_lock = threading.Lock()
        self._last_turn = self._seen_turn = 0
        self._open_turns: set[int] = set()
        self._at_end = contextlib.ExitStack()
        self._at_end.callback(self.link.close)
        if record is not None:
            self.settle(record)

    def settle(self, record: registry.ClusterRecord) -> None:
        """It is started, as ``record`` says."""
        self.record = record
        self.hosts = several_hosts({f.rank: f.hostname for f in record.facts})
        self._at_end.callback(registry.hold(record.name))

    # ------------------------------------------------------------------ its end

    def end(self) -> None:
        """End its processes for good, and give the cluster's name and hosts back.

        If stop was pressed meanwhile, the next call gives them back.
        """
        was_over = self.is_over
        self.stop()
        if self.allocation is not None:
            self.allocation.end()
            self.allocation = None
        elif not was_over:
            claims.remove(self.record.name, self.record.claim)

    def vacate(self) -> None:
        """End its processes for others, which get its name and hosts. One that is over: nothing."""
        if not self.is_over:
            assert self.allocation is not None
            self.allocation.keep()
            self.stop(RESTARTED)
            self.allocation.clear()

    def stop(self, why: str = STOPPED) -> None:
        """End its processes; returns when they are reaped. One that is over: nothing."""
        if not self.is_over:
            self.is_over = True
            self.processes.stop(why)
            for rank in range(self.num_processes):  # nobody goes on waiting for them
                self.link.mark_dead(rank, wire.Death(why))
            self._at_end.close()

    def leave(self) -> None:
        """Let go of it; its processes run on."""
        if not self.is_over:
            self.is_over = True
            self._at_end.close()
            self.processes.leave()
            if self.allocation is not None:
                self.allocation.let_go()

    # ------------------------------------------------------------------ deaths

    def listen(self) -> None:
        """Take in what its processes' parent tells."""
        self.fleet.on_event = self._on_event
        for event in self.fleet.lost:
            self._on_event(event)

    def _on_event(self, event: forks.Event | Host) -> None:
        """On the hosts' thread."""
        if self.is_over or self.is_ending:
            return
        match event:
            case forks.Stopping() if self.is_ours:
                # By another notebook or a shell: what it leaves is cleared away, and nothing
                # replaced.
                self.is_ending = True
                self.on_stopping()
            case forks.Stopping():
                self.ended_by = event.why
            case Host():
                why = f"host {event.name} is lost: {event.lost}"
                if not event.gone:
                    self.unreachable[event.name] = event.lost
                    why = f"host {event.name} can't be reached from here: {event.lost}"
                if event.gone and event is self.fleet.hosts[0]:
                    self.coordinator_died = why
                for rank in event.ranks:
                    self.mark_dead(rank, wire.Death(why, may_live=not event.gone))
            case forks.Exit(rank=int(rank)):
                why = self._exits.describe(event)
                if self.coordinator_died and -event.code in BY_JAX:
                    why = f"ended by JAX, whose coordinator had died: {self.coordinator_died}"
                told = self.ended_by or crash_log.explain(why, self.log_end(f"rank-{rank}"))
                has_crashed = told not in (why, self.ended_by)
                log = self.log_excerpt(rank) if has_crashed else ""
                self.mark_dead(rank, wire.Death(told, event.code, log=log))
            case forks.Exit() if not self.ended_by:  # else with its ranks, whose ends come as well
                setattr(self, f"{event.role}_died", self._exits.describe(event))
                events.tell()

    def mark_dead(self, rank: int, death: wire.Death) -> None:
        """From now on a rank is a dead one; the first reason stays."""
        self.dead.setdefault(rank, death)
        self.link.mark_dead(rank, death)
        events.tell()

    @property
    def is_broken(self) -> bool:
        """Whether no cell can run before a recovery."""
        return bool(self.dead or self.coordinator_died or self.is_torn)

    def log_excerpt(self, rank: int) -> str:
        """The end of a rank's log, as part of a message; "" if nothing is in it.

        The transport's own lines are left out, and a crash's stack is folded.
        """
        said = crash_log.excerpt(self.log_end(f"rank-{rank}"))
        return f"The end of rank {rank}'s log:\n{said}" if said else ""

    def log_end(self, name: str) -> str:
        """The end of a process's log: ``rank-0``, ``controller`` or ``coordinator``."""
        return self.processes.read_log(name, LOG_END_NBYTES)

    # ------------------------------------------------------------------ asking

    def check_ranks(self, ranks: Iterable[int] | None) -> list[int]:
        """``ranks``, or all of them; also of numpy's numbers.

        Raises:
          UsageError: one of them does not exist, or they are no numbers.
        """
        if ranks is None:
            return list(range(self.num_processes))
        try:
            given = list(ranks)
            if any(isinstance(rank, bool) for rank in given):  # a mask
                raise TypeError
            named = sorted({operator.index(rank) for rank in given})
        except TypeError:
            told = f"ranks must be a list of numbers, not {ranks!r:.80}."
            raise UsageError(told, "For example: ranks=[0, 2]") from None
        missing = [r for r in named if not 0 <= r < self.num_processes]
        if missing or not named:
            told = "No rank was named."
            if missing:
                there = f"this cluster has ranks 0-{self.num_processes - 1}."
                told = f"There is no {name_ranks(missing)}: {there}"
            raise UsageError(told, "%jaxcluster status lists the ranks.")
        return named

    def status(self, timeout_s: float = ASK_S) -> list[wire.RankState]:
        """The state of each rank now; its control channel answers during a cell too."""
        self.check()
        told = replies(self.link.gather(range(self.num_processes), State(), timeout_s=timeout_s))
        return [
            replace(
                told.get(rank) or wire.RankState(rank, "dead" if rank in self.dead else "silent"),
                pid=self.record.pids[rank],
                hostname=self.record.facts[rank].hostname,
            )
            for rank in range(self.num_processes)
        ]

    def look(self, launches: int = 0, timeout_s: float = ASK_S) -> Looked | None:
        """Who waits for whom, and so many last launches; None if no rank can tell."""
        living = [rank for rank in range(self.num_processes) if rank not in self.dead]
        for rank in living[:2]:
            answers = self.link.gather([rank], Look(launches), timeout_s=timeout_s)
            if (found := replies(answers).get(rank)) is not None:
                return found
        return None

    def turn(
        self, ranks: Sequence[int], *, is_waited_for: bool = False, is_skippable: bool = True
    ) -> CellSpec:
        """The turn of something that is about to be sent.

        Numbers are microseconds of the clock, so that those of other notebooks are others, and
        later cells have larger ones.

        Args:
          is_waited_for: nothing else is sent before it has ended.
          is_skippable: it is not run if a cell that was queued before it has failed.
        """
        with self._turns_lock:
            seq = self._last_turn = max(self._last_turn + 1, time.time_ns() // 1000)
            is_foreground = is_waited_for and not self._open_turns
            self._open_turns.add(seq)
            ranks, seen = tuple(sorted(ranks)), self._seen_turn
            return CellSpec(seq, ranks, self._owner, seen, is_foreground, is_skippable)

    def turn_ended(self, seq: int) -> None:
        """It is known how it has ended."""
        with self._turns_lock:
            self._open_turns.discard(seq)
            self._seen_turn = max(self._seen_turn, seq)

    def ask_in_turn(
        self,
        each: Mapping[int, Callable[[CellSpec], Operation[R]]],
        *,
        is_final: bool = False,
        **options: Any,
    ) -> dict[int, Event[R]]:
        """As ``ask``, at one place among all notebooks' cells.

        Args:
          each: makes each rank's request, with that place.
          is_final: all ranks do it, also if nobody waits for that any more.
        """
        self.check()
        turn = self.turn(list(each), is_skippable=False)
        try:
            return self.ask(each, {rank: make(turn) for rank, make in each.items()}, **options)
        except BaseException:
            if not is_final:
                self.link.request_each(dict.fromkeys(each, Interrupt(turn.seq)), sink=Sink())
            raise
        finally:
            self.turn_ended(turn.seq)

    def ask(
        self,
        ranks: Iterable[int],
        request: Request[R],
        *,
        timeout_s: float = ASK_S,
        **options: Any,
    ) -> dict[int, Event[R]]:
        """The replies of all ``ranks`` to one request, or to each rank's own.

        Args:
          **options: see ``Link.gather``.

        Raises:
          RankDied, RankError, TransferError: what a rank answered instead.
          RankHung: a rank did not answer in time; where it is, is said.
        """

        def refuse_unreachable(event: Event[R]) -> None:
            if event.op == "died" and event.body.may_live:  # the others may wait for it
                unwrap(event)

        self.check()
        options |= {"timeout_s": timeout_s, "on_answer": refuse_unreachable}
        answers = self.link.gather(ranks, request, **options)
        # Other ranks' reports of a death come after it.
        for _, event in sorted(answers.items(), key=lambda one: (one[1].op != "died", one[0])):
            unwrap(event)
        if missing := sorted(set(ranks) - set(answers)):
            where = "".join(f" Rank {r} is {at}." for r, at in self._places(missing).items())
            raise RankHung(
                f"{name_ranks(missing).capitalize()} did not answer within {timeout_s:g} s.{where}",
                "%jaxcluster status shows where each rank is; %jaxcluster interrupt stops them.",
                missing,
            )
        return answers

    def ask_some(
        self, request: Request[R], *, timeout_s: float = ASK_S
    ) -> tuple[dict[int, R], dict[int, str]]:
        """The reply of each rank, or the reason why it has none.

        Args:
          request: for all ranks, or by rank.
        """
        self.check()
        ranks = list(request) if isinstance(request, Mapping) else list(range(self.num_processes))
        answers = self.link.gather(ranks, request, timeout_s=timeout_s)
        missing = [rank for rank in ranks if rank not in answers]
        places = {rank: f": it is {at}" for rank, at in self._places(missing).items()}
        late = {r: f"gave no answer within {timeout_s:g} s{places.get(r, '')}" for r in missing}
        failed = {r: event for r, event in answers.items() if event.op != "reply"}
        reasons = {r: f"dead ({e.why})" if e.op == "died" else e.why for r, e in failed.items()}
        return replies(answers), reasons | late

    def _places(self, silent: Sequence[int]) -> dict[int, str]:
        """At which line of which cell silent ranks are, of those that are in a cell."""
        states = [state for state in self.status() if state.rank in silent] if silent else []
        return {s.rank: f"in cell [{s.cell}] line {s.line}" for s in states if s.line}

    # ------------------------------------------------------------------ ipyparallel

    @functools.cached_property
    def client(self) -> Any:
        """An ``ipyparallel.Client`` on the same engines; engine id is rank."""
        from jaxcluster.cluster.engines import Client  # with all of ipyparallel

        file = str(registry.client_file(self.record.name))
        made = Client(file, context=(context := Context()))
        self._at_end.enter_context(contextlib.suppress(Exception))  # its sockets may be closed
        self._at_end.callback(context.destroy, linger=0)
        self._at_end.callback(made.close)
        made.wait_for_engines(self.num_processes, timeout=30)
        return made


# --------------------------------------------------------------------------- silent ranks


def end_hung(world: World, check: Callable[[], None]) -> None:
    """Kill the ranks that can't even be asked to save their variables.

    Takes ``PATIENCE_S`` where there is one.

    Args:
      check: called now and then; it may raise to end this before any is killed.

    Raises:
      RecoveryError: one is stopped, or held by a debugger. None is killed.
    """
    living = {*range(world.num_processes)} - world.dead.keys()
    heard = world.link.gather(living, State(), timeout_s=PATIENCE_S, check=check)
    whys = world.processes.why_silent(sorted(living - heard.keys()))
    if held := {rank: why.message for rank, why in whys.items() if why.is_held}:
        told = " ".join(say_each(held, "do not answer either"))
        raise RecoveryError(
            f"{told} So the variables of {name_ranks(held)} can't be saved, and nothing was "
            "ended or lost.",
            "Let it go on, and then try again.\n"
            "%jaxcluster restart --clean ends it, and gives you empty ranks.",
        )
    for rank, why in whys.items():
        if why.is_hung:
            world.mark_dead(rank, wire.Death(f"ended by jaxcluster: it {why.message}"))
            with contextlib.suppress(LaunchError):
                world.processes.kill(rank)


def tell_silences(whys: Mapping[int, Silence]) -> list[str]:
    """Why ranks are silent, a sentence for each reason, and what to type."""
    restart = "; %jaxcluster restart gives new processes"
    told = {rank: f"{why.message}{restart * why.is_hung}" for rank, why in whys.items()}
    return say_each(told, "do not answer either")


def who_we_are() -> str:
    """This process, for those who wait for it."""
    notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).name
    process = f"process {os.getpid()} on {socket.gethostname()}"
    return f"{notebook} ({process})" if notebook else process
