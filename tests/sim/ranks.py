"""Simulated ranks: what runs programs there, counts, tells and obeys, on the virtual clock.

The journal and the gate are the real ones. The rest stands for the engine's: a main thread that
runs cells and main handlers, threads of the user's, and a control channel that always answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from journals import launched

from jaxcluster import wire
from jaxcluster.engine import cell_queue, failures, strict
from jaxcluster.engine import gate as gates
from jaxcluster.engine import journal as journals
from jaxcluster.engine.state.restoring import Restoring
from jaxcluster.model import lockstep
from jaxcluster.wire.link import Event
from jaxcluster.wire.ops.lockstep import Checked, Replayed, Rest
from jaxcluster.wire.ops.state import ALREADY_UNDONE, UndoLooked
from sim import restarts
from sim.hub import CALM, Actor, Hub
from sim.programs import (
    Catch,
    Join,
    Late,
    Launch,
    Print,
    Program,
    Raise,
    Repeat,
    Set,
    Sleep,
    Step,
    Thread,
)
from sim.truth import ZEROS, Devices, Value, pushed

CHECK = -1  # the program of the self-check
COURSE = "all-reduce"
STUCK_S = 8.0
COMPILE_S = (0.0, 0.0, 0.01, 0.3, 1.5)  # that a rank takes for it once all have come to it
CHECK_S = 2.5  # longer than messages are late, here and on the notebook's side
LOOKS = frozenset(["poll", "state", "at_rest", "busy", "courses", "prepare_check", "undo_look"])
LOOK_S, SLOW_LOOK_S = 0.01, 0.3  # between looks of a cell that waits at the gate


@types.coroutine
def pause(seconds: float) -> Generator[float, None, None]:
    """In place of ``asyncio.sleep`` in the gate."""
    yield seconds


class Died(BaseException):
    """The rank's process has ended."""


class Journal(journals.Journal):
    """The real one, without lines: what calls it here is no cell. Actors are its threads."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self._rank = rank
        self._main_thread = -1  # else all actors were taken for it
        self.is_apart = False  # the main thread runs a task or a timer
        self.line: Any = None  # of the step that launches
        self._told_at = 0, 0
        self._told: dict[object, Any] = {}

    def _place_of(self, frame: Any) -> Any:
        return self.line, 0, None, 0

    def _tell(self, place: Any) -> tuple[int | None, int | None, str]:
        return (None, None, "") if place[0] is None else (place[0][0], place[0][1], "")

    def place(self) -> tuple[None, None]:
        return None, None

    def launches(self) -> dict[str, list[int]]:
        if self._begun or self._made or any(self.broken.values()):
            return super().launches()
        told = self._told_now()
        if "launches" not in told:
            told["launches"] = super().launches()
        return told["launches"]

    def tail(self, count: int) -> list[wire.Launch]:
        if self._begun or self._made or any(self.broken.values()):
            return super().tail(count)
        told = self._told_now()
        if count not in told:
            told[count] = super().tail(count)
        return told[count]

    def _told_now(self) -> dict[object, Any]:
        """What was told since the last launch: it is asked often, and changes by them alone."""
        now = self._entered[0], self.restarts
        if now != self._told_at:
            self._told_at = now
            self._told = {}
        return self._told

    def _prepare_with_care(self, program: Any, ident: int, caller: Any, noted: Any) -> Any:
        """Frames of greenlets are not seen from others, so a launch has none."""
        return super()._prepare_with_care(program, ident, None, noted)

    def origin(self) -> int:
        if self._rank.hub.running is not self._rank.main or self.is_apart:
            return 0
        return wire.OURS if self._ours else self._running


class Timers:
    """In place of ``threading``, where a rank is told later."""

    Lock = contextlib.nullcontext

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def Timer(self, seconds: float, do: Callable[..., object], args: Sequence[Any]) -> Any:
        def start() -> None:
            self._hub.at(self._hub.now + seconds, lambda: do(*args))

        return types.SimpleNamespace(start=start)


# The control thread hands cells over at once.
_DIRECTLY = types.SimpleNamespace(call_main=lambda do: do())


class Store:
    """What all ranks of one generation can read."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.found: dict[str, str] = {}
        self.writes = 0

    def write(self, key: str, value: str) -> None:
        self.found[key] = value
        self.writes += 1
        self.hub.stir_all()

    def read(self, folder: str) -> dict[str, str]:
        start = folder + "/"
        return {k[len(start) :]: v for k, v in self.found.items() if k.startswith(start)}

    def delete(self, key: str) -> None:
        self.found.pop(key, None)


class Service:
    """JAX's coordination service, as far as strict mode needs it."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.found: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        self.found[key] = value
        self.hub.writes += 1
        self.hub.stir_all()

    def key_value_delete(self, key: str) -> None:
        self.found.pop(key, None)

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        return [(k, v) for k, v in self.found.items() if k.startswith(folder)]


class Refused(ValueError):
    """XLA has launched nothing."""


class Cut(ValueError):
    """A signal's handler has raised."""


class Request:
    """A message to a rank, and the way back.

    Attributes:
      due: when its answer comes, once it is on its way.
    """

    __slots__ = ("answer", "body", "due", "id", "link", "op", "rank", "sink")

    def __init__(self, link: Any, rank: int, op: str, id: str, body: Any, sink: Any) -> None:
        self.link, self.rank, self.op, self.id = link, rank, op, id
        self.body, self.sink = body, sink
        self.due, self.answer = math.inf, None

    @property
    def ident(self) -> bytes:
        return self.link.client.ident

    def reply(self, body: Any) -> None:
        self.link.cluster.ranks[self.rank].reply(self, body)

    def arrive(self) -> str | None:
        """``CALM``, if nothing is changed by it."""
        link = self.link
        if link.client.link is not link or link.generation != link.cluster.generation:
            return CALM  # it was on its way to a process that is gone
        if self.op in ("cell", "resume") and self.rank in link.lost:
            return CALM
        return link.cluster.ranks[self.rank].receive(self)


@dataclasses.dataclass
class Before:
    """What undo keeps of the time before a cell.

    Attributes:
      is_undone: it was taken back, perhaps before it has ended here: then at its end once more.
    """

    seq: int
    names: dict[str, Any]
    is_undone: bool = False
    gone: str = ""  # why it can't be taken back any more


class Rank:
    """One of them."""

    def __init__(self, cluster: Cluster, number: int, names: dict[str, Any]) -> None:
        self.cluster, self.number = cluster, number
        self.hub = cluster.hub
        self.journal = Journal(self)
        self.strict: strict.Strict | None = None
        if cluster.is_strict:
            self.strict = strict.Strict(self.journal, number, cluster.service, "1")
            self.journal.taken_back = self.strict.taken_back
            self.journal.host_values.announced = []
        self.gate = gates.Gate(number, lambda: cluster.store)
        self.names = names
        self.queue = cell_queue.CellQueue(number, _DIRECTLY, self._take)  # type: ignore[arg-type]
        self.jobs: deque[Callable[[], object]] = deque()  # of its loop, also while a cell awaits
        self.cells: deque[tuple[Request, wire.CellRequest]] = deque()
        self.tasks: list[tuple[float, Sequence[Step]]] = []
        self.threads: set[Actor] = set()
        self.current: wire.CellRequest | None = None
        self.ended = self.probes = self.releases = 0
        self.is_interrupted = self.is_listening = False
        self.place, self.stopped_at = "", None  # of the step that it takes, and was stopped in
        self.before: Before | None = None
        self.olds: dict[int, dict[str, Any]] = {}  # what undo has ever kept, by the cell
        self.held_until = 0.0  # of ``Undo``
        self.is_dead = False
        self.programs: dict[str, wire.Launch] = {}
        self.main = self.hub.start(f"rank {number}", self._run, number)
        self.main.rank = self
        self.saved: dict[str, Any] | None = None  # what a snapshot has, once there is one
        self.lost: dict[str, str] = {}
        self.restoring = Restoring()
        self._paths: dict[int, tuple[Iterator[Any], Iterator[None]]] = {}  # of each program
        self._has_compiled: set[int] = set()
        self.told = restarts.Told()
        self.others = restarts.others_of(self, self.told) if cluster.restarts is not None else None

    # ------------------------------------------------------------------ the control channel

    def receive(self, request: Request) -> str | None:
        """``CALM``, if nothing is changed by it."""
        if self.is_dead:
            return CALM
        op = request.op
        _HANDLERS[op](self, request)
        if op not in LOOKS or self.jobs:
            self.hub.stirred.add(self.number)
            return None
        return CALM

    def _stir(self) -> None:
        """Its threads may find what they wait for."""
        self.hub.stirred.add(self.number)

    def reply(self, request: Request, body: Any, op: str = "reply", soon: float = 0.0) -> None:
        if not self.is_dead:
            answer: Event[Any] = Event(self.number, op, request.id, body)
            request.link.client.link.deliver(request, answer, soon)

    def state(self) -> wire.RankState:
        running = self.current
        return wire.RankState(
            self.number, 100 + self.number, "here", "running" if running else "idle", ["cpu:0"],
            seq=running.seq if running else 0,
            cell=running.execution_count if running else None,
            queued=len(self.queue),
            ended=self.ended,
            taken=self.queue.taken,
            launches=self.journal.launches(),
            background=self._background(),
            probes=self.probes,
            gate=self.gate.waits_for,
            is_cut_short=self.gate.is_cut_short,
            restarts=self.journal.restarts,
        )  # fmt: skip

    def _lives(self) -> bool:
        """Whether something else of the user's may launch programs."""
        return bool(self.tasks) or any(not actor.is_over for actor in self.threads)

    def _background(self) -> list[str]:
        if not (self.tasks or self.threads):
            return []
        threads = [f"thread '{a.name}'" for a in self.threads if not a.is_over]
        return [*threads, *("timer of the event loop" for _ in self.tasks[:1])]

    def _on_state(self, request: Request) -> None:
        self.reply(request, self.state())

    def _on_at_rest(self, request: Request) -> None:
        is_free = self.current is None and not len(self.queue)
        launches = self.journal.launches()
        self.reply(request, Rest(is_free, self.queue.taken, launches, self.gate.unsettled()))

    def _on_poll(self, request: Request) -> None:
        launches = self.journal.tail(request.body.launches)
        report = wire.RankReport(
            self.state(), [], launches,
            announced=self.journal.announced, given_up=[*self.journal.given_up.values()],
        )  # fmt: skip
        if self.is_listening and not self.main.ready():
            self.probes += 1  # as its loop would do at once
        else:
            self.jobs.append(self._probe)
        self.reply(request, wire.PollReply(report, [], []))

    # ------------------------------------------------------------------ restarts

    def names_before(self, seq: int) -> dict[str, Any] | None:
        """As ``Undo.before``."""
        if self.before is None or self.before.seq > seq:
            return None
        return dict(self.names if self.before.seq < seq else self.before.names)

    def _on_hold_replies(self, request: Request) -> None:
        if self.others is not None:
            self.others.hold(request.ident, request.body.is_on)
        self.reply(request, None)

    def _on_snapshot(self, request: Request) -> None:
        self._answer(request)

    def _on_restore_look(self, request: Request) -> None:
        self.jobs.append(lambda: self._answer(request))

    def _on_restore_bind(self, request: Request) -> None:
        self.jobs.append(lambda: self._answer(request))

    def _on_restore_drop(self, request: Request) -> None:
        self._answer(request)

    def _on_unbind(self, request: Request) -> None:
        self.jobs.append(lambda: self._answer(request))

    def _answer(self, request: Request) -> None:
        try:
            body = restarts.answer(self, request.op, request.body)
        except Exception as error:
            told = wire.Failure(type(error).__name__, str(error))
            self.reply(request, told, "error")
        else:
            self.reply(request, body)

    def _name_changes(self, ident: bytes) -> wire.NameChanges | None:
        """What a notebook is told of them: see ``engine.names``."""
        return None if self.others is None else self.told.changes(ident, self.names)

    def _probe(self) -> None:
        self.probes += 1

    def _on_clear(self, request: Request) -> None:
        self.gate.clear(request.body.seqs)
        self.releases += 1
        self.reply(request, None)

    def _on_resume(self, request: Request) -> None:
        self.journal.restart(request.body.number, request.body.since)
        self.reply(request, None)

    def _on_prepare_check(self, request: Request) -> None:
        self.reply(request, [], soon=0.01)

    def _on_busy(self, request: Request) -> None:
        self.reply(request, 0.0)

    def _on_courses(self, request: Request) -> None:
        self.reply(request, [COURSE] * len(request.body.fingerprints))

    def _on_interrupt(self, request: Request) -> None:
        seq = request.body.seq
        if self.current is None or (seq is not None and self.current.seq != seq):
            if seq is not None:
                self._withdraw(seq)
            self.reply(request, False)
            return
        self.is_interrupted = True
        self.reply(request, True)

    def _on_withdraw(self, request: Request) -> None:
        self.reply(request, self._withdraw(request.body.seq))

    def _withdraw(self, seq: int) -> bool:
        waits = self.queue.withdraw(seq)
        self.releases += 1
        if waits is not None:
            self.reply(waits, wire.CellReply(self.number, seq, "interrupted", 0.0))
        return waits is not None

    def _on_undo_look(self, request: Request) -> None:
        if (why := self._refuses_undo(request)) is not None:
            self.reply(request, wire.Failure("UsageError", why), "error")
            return
        self.held_until = self.hub.now + request.body.hold_s
        if not self._has_begun(request):
            self.reply(request, UndoLooked())
            return
        assert self.before is not None
        old, new = self.before.names, self.names
        back = [n for n in old if new.get(n) is not old[n]]
        donated = [n for n in back if isinstance(old[n], Value) and self.cluster.donates]
        made = [n for n in new if n not in old]
        self.reply(request, UndoLooked(back, made, donated=donated))

    def _on_undo(self, request: Request) -> None:
        if (why := self._refuses_undo(request)) is not None:
            self.reply(request, wire.Failure("UsageError", why), "error")
            return
        if not self._has_begun(request):
            for name in request.body.lost:
                self.names.pop(name, None)
            self.reply(request, [])
            return
        assert self.before is not None
        self.before.is_undone = True
        for name in request.body.lost:
            self.before.names.pop(name, None)
        self._put_back(self.before)
        if self.others is not None:
            self.others.spoil(request.ident, request.body.seq)
        self.reply(request, [])

    def _on_undo_drop(self, request: Request) -> None:
        self.held_until = 0.0
        self.reply(request, None)

    @property
    def is_to_put_back(self) -> bool:
        """Whether the cell that runs here was taken back, which it will be at its end once more."""
        return self.current is not None and self.before is not None and self.before.is_undone

    def _put_back(self, before: Before) -> None:
        self.names.clear()
        self.names.update(before.names)

    def _refuses_undo(self, request: Request) -> str | None:
        if self.before is None:
            return "no cell has run"
        if self.before.seq > request.body.seq:
            return "another cell has begun since"
        if self.before.gone:
            return self.before.gone
        if self.before.seq == request.body.seq and self.before.is_undone:
            return ALREADY_UNDONE
        return None

    def _has_begun(self, request: Request) -> bool:
        """Whether the cell was not interrupted here before its turn, and was sent here."""
        return self.before is not None and self.before.seq == request.body.seq

    def _on_sim_pull(self, request: Request) -> None:
        has_ended = self.current is None and self.ended >= self.cluster.last.get(self.number, 0)
        self.reply(request, (self.names.get(request.body.name), has_ended))

    def _on_sim_push(self, request: Request) -> None:
        self.names[request.body.name] = pushed(self.number, request.body.number)
        self.reply(request, None)

    def _on_sim_px(self, request: Request) -> None:
        self.jobs.append(lambda: self._run_px(self.cluster.program(f"# {request.body.number}")))
        self.reply(request, None)

    def _run_px(self, program: Program) -> None:
        while self.hub.now < self.held_until:  # a cell that was looked at may be taken back
            self.hub.block(lambda: not self.held_until, self.held_until - self.hub.now)
        if self.before is not None:
            self.before.gone = "%%px, or another client's code, has run on it since"
        self._take_steps_apart(program.of(self.number))

    def _on_replay(self, request: Request) -> None:
        self.jobs.append(lambda: self._replay(request))

    def _on_self_check(self, request: Request) -> None:
        self.jobs.append(lambda: self._check(request))

    # ------------------------------------------------------------------ cells that come

    def _on_cell(self, request: Request) -> None:
        self.queue.on_cell(request)  # type: ignore[arg-type]

    def _take(self, request: Any, cell: wire.CellRequest) -> None:
        self.cells.append((request, cell))
        self._stir()

    # ------------------------------------------------------------------ the main thread

    def _run(self) -> None:
        while True:
            self._listen(self._has_work)
            self._work()

    def _listen(self, ready: Callable[[], object], seconds: float | None = None) -> None:
        """Wait as an event loop does: what is asked meanwhile is answered at once."""
        self.is_listening = True
        self.hub.block(ready, seconds)
        self.is_listening = False

    def _has_work(self) -> bool:
        return bool(self.cells or self.jobs or (self.tasks and self._is_due()))

    def _work(self) -> None:
        """One job, task or cell."""
        if self._has_other_work():
            self._work_beside()
        elif self.cells:
            self._run_in_turn(*self.cells.popleft())

    def _work_beside(self) -> None:
        """One job or task, if there is one: also in the middle of a cell that awaits."""
        due = next((t for t in self.tasks if t[0] <= self.hub.now), None)
        if due is not None:
            self.tasks.remove(due)
            self._take_steps_apart(due[1])
        elif self.jobs:
            self.jobs.popleft()()

    def _news(self) -> int:
        """How often something has changed that a cell which waits at the gate may see."""
        return self.cluster.store.writes + self.releases

    def _idle(self, seconds: float) -> None:
        """What the event loop does while a cell awaits: everything but cells."""
        until = self.hub.now + seconds
        while self.hub.now < until:
            self._listen(self._has_other_work, until - self.hub.now)
            self._work_beside()

    def _has_other_work(self) -> bool:
        return bool(self.jobs or (self.tasks and self._is_due()))

    def _is_due(self) -> bool:
        return any(at <= self.hub.now for at, _ in self.tasks)

    def _run_in_turn(self, request: Request, cell: wire.CellRequest) -> None:
        waits = self.gate.wait(cell, request.ident, lambda: self.queue.waits(cell.seq))
        look_at, look_s = self.hub.now, LOOK_S
        with contextlib.suppress(StopIteration):
            while True:
                seen = self._news()
                waits.send(None)
                while self._news() == seen:  # till then it would look in vain
                    self._listen(lambda s=seen: self._has_other_work() or self._news() != s)
                    self._work_beside()
                while look_at <= self.hub.now:
                    look_at += look_s
                    look_s = min(SLOW_LOOK_S, 1.5 * look_s)
                self._idle(look_at - self.hub.now)
        if self.queue.withdraw(cell.seq) is None:
            self.ended = max(self.ended, cell.seq)
            self.gate.ended(cell, request.ident, self._end_of(cell, "interrupted"))
            return
        self.current, self.is_interrupted = cell, False
        self.journal.enter(cell.seq)
        self.before = Before(cell.seq, dict(self.names))
        self.olds[cell.seq] = self.before.names
        self.stopped_at = None
        status, error = "ok", None
        steps = self.cluster.program(cell.source).of(self.number)
        try:
            self._take_steps(steps, cell)
        except KeyboardInterrupt:
            status = "interrupted"
        except Exception as raised:
            if self.stopped_at != "":
                self.stopped_at = f"{self.place}{self.stopped_at or ''}"
            heard = raised.heard if isinstance(raised, failures.Divergence) else None
            error = wire.ErrorInfo(type(raised).__name__, str(raised), [], heard=heard)
            status = "error"
        if self.before.is_undone:  # the notebook did not wait for its end
            self._put_back(self.before)
        self.current, self.ended = None, cell.seq
        self.journal.leave()
        end = self._end_of(cell, status, error)
        self.gate.ended(cell, request.ident, end)
        reply = wire.CellReply(
            self.number, cell.seq, status, 0.001, error, end.launches,
            own=end.own, foreign=end.foreign, unchecked=end.unchecked, background=end.background,
            given_up=sorted(self.journal.given_up), names=self._name_changes(request.ident),
            stopped_at=self.stopped_at,
        )  # fmt: skip
        if self.others is None:
            self.reply(request, reply)
        else:
            self.others.answer(request.ident, lambda: self.reply(request, reply))
            self.others.cell_ended(request.ident, cell.seq)

    def _end_of(
        self, cell: wire.CellRequest, status: str, error: wire.ErrorInfo | None = None
    ) -> wire.cell_ends.CellEnd:
        journal = self.journal
        own, launches = journal.own(cell.seq), journal.launches()
        ended = status, own, launches, journal.foreign, journal.unchecked, self._lives()
        refused = wire.cell_ends.is_refused(error, journal.given_up)
        return wire.cell_ends.CellEnd(*ended, refused, self.stopped_at)

    # ------------------------------------------------------------------ the user's code

    def _take_steps(
        self, steps: Sequence[Step], cell: wire.CellRequest | None, within: str = ""
    ) -> None:
        for at, step in enumerate(steps):
            place = self.place = f"{within}{at}/"
            self.heed()
            match step:
                case Launch():
                    value = self._launch(step)
                    if self.cluster.inline and self.cluster.is_raised_early:
                        self._wait_for(value, can_stop=False)
                        self.place = ""
                        self.heed()
                    self.names[step.name] = value
                    if self.cluster.inline:
                        self._wait_for(value, can_stop=False)
                case Print(name):
                    value = self.names.get(name)
                    if isinstance(value, Value):
                        self._wait_for(value, can_stop=True)
                    if cell is not None:
                        self.cluster.printed.append((cell.source, self.number, value))
                case Set(name, what):
                    self.names[name] = what
                case Sleep(seconds, awaits):
                    self._sleep(seconds, awaits)
                case Raise():
                    raise ValueError("early")
                case Catch(inner, of_stop):
                    heard: type[BaseException] = KeyboardInterrupt if of_stop else ValueError
                    with contextlib.suppress(heard):
                        self._take_steps(inner, cell, place)
                case Repeat(times, inner):
                    for turn in range(times):
                        self._take_steps(_of_turn(inner, turn), cell, place)
                case Thread(inner):
                    self._start_thread(inner)
                case Join():
                    while self._lives() and not self.is_interrupted:
                        self._listen(
                            lambda: (
                                self._has_other_work() or self.is_interrupted or not self._lives()
                            )
                        )
                        self._work_beside()
                case Late(seconds, inner):
                    self.tasks.append((self.hub.now + seconds, inner))
                    self.hub.at(self.hub.now + seconds, self._stir)  # then it can be heard
        self.place = f"{within}end/"
        self.heed()

    def _take_steps_apart(self, steps: Sequence[Step]) -> None:
        """A task's: what it launches belongs to no cell."""
        self.journal.is_apart = True
        try:
            for step in steps:
                if isinstance(step, Launch):
                    value = self.names[step.name] = self._launch(step)
                    if self.cluster.inline:
                        self._wait_for(value, can_stop=False)
                elif isinstance(step, Set):
                    self.names[step.name] = step.what
        except (RuntimeError, failures.Divergence):
            pass  # a task's or a timer's ends there
        finally:
            self.journal.is_apart = False

    def _start_thread(self, steps: Sequence[Step]) -> None:
        def work() -> None:
            for step in steps:
                if isinstance(step, Sleep):
                    self.hub.block(None, step.seconds)
                elif isinstance(step, Launch):
                    try:
                        value = self.names[step.name] = self._launch(step)
                    except failures.Divergence:
                        return
                    if self.cluster.inline:
                        self.hub.block(lambda v=value: v.is_ready)

        self.threads.add(self.hub.start("loader", work, self.number))

    def _launch(self, step: Launch) -> Value:
        inputs = tuple(
            value if isinstance(value := self.names.get(name), Value) else None
            for name in step.inputs
        )
        journal, program = self.journal, self.cluster.compiled(step.where, step.program)
        journal.line = self.cluster.line(step.meant)
        if self.cluster.is_tuned:
            self._compile(program)
        if self.strict is not None:
            self.strict.before_launch(program)
        if step.is_refused:
            journal.launch(program, lambda error: True, _refuse)
        # As JAX's fast path does.
        path = self._paths.get(program.fingerprint)
        if path is None:
            path = journal.preparations(program, None), journal.confirmations(program)
            self._paths[program.fingerprint] = path
        prepared, confirmed = path
        next(prepared)
        if self.cluster.inline and not step.is_cut:
            next(confirmed)
        value = self.cluster.devices.launch(
            self.number, step.where, step.program, step.meant, inputs
        )
        if step.is_cut:
            _confirm_and_raise(confirmed)
        elif not self.cluster.inline:
            next(confirmed)
        return value

    def _compile(self, program: journals.Program) -> None:
        """As XLA does on GPU: each process waits for all of the program's, and hears no stop."""
        members = lockstep.members(program.processes)
        if program.fingerprint in self._has_compiled or self.number not in members:
            return
        known, uncompiled = (
            self.cluster.tuned,
            wire.compiling_fingerprint(program.fingerprint >> 32),
        )
        known.setdefault(program.fingerprint, set()).add(self.number)
        self.hub.stir_all()
        upcoming = self.journal.upcoming(dataclasses.replace(program, fingerprint=uncompiled))
        with self.journal.announcing(upcoming):
            self.hub.block(lambda: known[program.fingerprint].issuperset(members))
            self.hub.block(None, COMPILE_S[int(len(COMPILE_S) * self.hub.chance.random())])
        self._has_compiled.add(program.fingerprint)

    def _wait_for(self, value: Value, can_stop: bool) -> None:
        if value.tainted is None:
            self.hub.block(lambda: value.is_ready or (can_stop and self.is_interrupted))
        if value.failed:
            raise RuntimeError("Connection closed by peer")
        if can_stop:
            self.heed()

    def _sleep(self, seconds: float, awaits: bool) -> None:
        until = self.hub.now + seconds
        while self.hub.now < until and not self.is_interrupted:
            if awaits:
                self._listen(
                    lambda: self._has_other_work() or self.is_interrupted, until - self.hub.now
                )
                self._work_beside()
            else:
                self.hub.block(lambda: self.is_interrupted, until - self.hub.now)

    def heed(self) -> None:
        if self.is_interrupted and self.current is not None:
            self.is_interrupted = False
            self.stopped_at = self.place if self.stopped_at is None else ""
            raise KeyboardInterrupt

    # ------------------------------------------------------------------ recovery

    def _replay(self, request: Request) -> None:
        body = request.body
        if body.counts != self.journal.launches():
            self.reply(request, wire.Failure("MovedOn", "it has moved on"), "error")
            return
        self.journal.line = None
        with self.journal.unannounced():
            for fingerprint in body.fingerprints:
                where, program = self.cluster.known[fingerprint]
                launched(self.journal, self.cluster.compiled(where, program))
                value = self.cluster.devices.launch(self.number, where, program, ZEROS, ())
                self.hub.block(lambda v=value: v.is_ready, STUCK_S)
                if not value.is_ready or value.failed:
                    told = wire.Failure("ReplayStuck", "a program has not ended")
                    self.reply(request, told, "error")
                    return
        ran = len(body.fingerprints)
        self.reply(request, Replayed(ran, self.journal.launches()))

    def _check(self, request: Request) -> None:
        number = request.body.number
        self.journal.unchecked, self.journal.line = False, None
        with self.journal.unannounced():
            everybody = self.cluster.everybody
            launched(self.journal, self.cluster.compiled(everybody, CHECK))
            value = self.cluster.devices.launch(self.number, everybody, CHECK, number, ())
            self.hub.block(lambda: value.is_ready, CHECK_S)
        why = "" if value.is_ready else "did not end"
        if value.tainted or value.failed:
            why = "came out wrong"
        self.reply(request, Checked(not why, why, self.journal.launches()))

    def die(self) -> None:
        self.is_dead = True
        for actor in [self.main, *self.threads]:
            actor.kill()
            if actor in self.hub.actors:
                self.hub.actors.remove(actor)


_HANDLERS = {n.removeprefix("_on_"): of for n, of in vars(Rank).items() if n.startswith("_on_")}


def _refuse() -> None:
    raise Refused("INVALID_ARGUMENT")


def _confirm_and_raise(confirmed: Iterator[None]) -> None:
    """A launch is confirmed, and at the first call of Python from then on a handler raises."""

    def trace(frame: Any, event: str, arg: Any) -> Any:
        raise Cut("time is up")

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        next(confirmed)
    finally:
        sys.settrace(before)
    raise Cut("time is up")


def _of_turn(steps: Sequence[Step], turn: int) -> list[Step]:
    """A loop's steps, each time meant for another one."""
    return [
        dataclasses.replace(s, meant=(*s.meant, turn)) if isinstance(s, Launch) else s
        for s in steps
    ]


class Cluster:
    """The ranks of one generation after the other, and what they print."""

    def __init__(self, hub: Hub, num_ranks: int, inline: bool, programs: Mapping[str, Program],
                 is_strict: bool = False, is_tuned: bool = False,
                 own: restarts.Restarts | None = None, donates: bool = False,
                 is_raised_early: bool = False) -> None:  # fmt: skip
        self.hub, self.num_ranks, self.inline = hub, num_ranks, inline
        self.restarts = own  # the real code of restarts
        self.cut_off = 0.0  # how often a cell is seconds on its way
        self.owner: Any = None  # the notebook that has started it
        self.wrong: list[str] = []  # what has come back other than it was
        self.is_strict, self.service = is_strict, Service(hub)
        self.is_tuned = is_tuned  # programs are compiled as on GPU
        self.donates = donates and own is None  # ``restarts`` knows of no donated values
        self.is_raised_early = is_raised_early
        self.tuned: dict[int, set[int]] = {}  # by fingerprint: who has come to compile it
        self.everybody = ",".join(map(str, range(num_ranks)))
        hub.ranks = range(num_ranks)
        self.devices = Devices(num_ranks, hub.stirred)
        self.store = Store(hub)
        self.printed: list[tuple[str, int, Any]] = []
        self.pulled: list[tuple[int, str, int, Any, bool]] = []  # True: behind all cells
        self.known: dict[int, tuple[str, int]] = {}
        self._programs = programs
        self._compiled: dict[tuple[str, int], journals.Program] = {}
        self._lines: dict[tuple[int, Any], tuple[int, int]] = {}
        self.last: dict[int, int] = {}  # of each rank: the seq of the cell that it was sent last
        self.seq = 0
        self.turn_taken = False
        self.generation = 0
        given = "abcd" if self.donates else ""  # else a first cell has nothing to donate
        self.ranks = [
            Rank(self, n, {name: pushed(n, 0) for name in given}) for n in range(num_ranks)
        ]
        self.past: list[Rank] = []  # of former generations

    def program(self, source: str) -> Program:
        if not source:  # that of an act, which waits for what other notebooks have left
            return Program(0, 0, dict.fromkeys(range(self.num_ranks), ()), False)
        return self._programs[source.rpartition("# ")[2].strip()]

    def line(self, meant: Any) -> tuple[int, int]:
        """Cell and line of a launch; the same object for the same ones."""
        cell, step = meant[:2]
        return self._lines.setdefault((cell, step), (cell, step if type(step) is int else 50))

    def compiled(self, where: str, program: int) -> journals.Program:
        key = where, program
        if key not in self._compiled:
            fingerprint = wire.fingerprint(len(self._compiled), program + 1000)
            self.known[fingerprint] = key
            self._compiled[key] = journals.Program(f"jit(f{program})", fingerprint, where, "", None)
        return self._compiled[key]

    def replace(self, undo: bool) -> None:
        """New processes with the old ones' variables, as far as these have come to an end."""
        self.generation += 1
        kept = []
        last = max(self.last.values(), default=0)
        for rank in self.ranks:
            names = dict(rank.names)
            if undo and rank.before is not None and rank.before.seq == last:
                names = dict(rank.before.names)
            kept.append({n: v for n, v in names.items() if not isinstance(v, Value) or v.is_ready})
        if self.restarts is not None:
            self.restarts.photograph(self.ranks)
            kept = [{} for _ in self.ranks]
        lives = [names for rank, names in zip(self.ranks, kept, strict=True) if not rank.is_dead]
        kept = [
            dict(lives[0]) if rank.is_dead and lives else names
            for rank, names in zip(self.ranks, kept, strict=True)
        ]
        gone = [n for names in kept for n in {*kept[0], *names} if any(n not in k for k in kept)]
        for rank in self.ranks:
            rank.die()
        self.past += self.ranks
        self.devices.restart_counts()
        self.store, self.service = Store(self.hub), Service(self.hub)
        self.tuned = {}
        self.last = {}
        self.ranks = [
            Rank(self, n, {k: v for k, v in names.items() if k not in gone})
            for n, names in enumerate(kept)
        ]
