"""Notebooks on simulated ranks: the real cells, dispatcher and recovery, on the virtual clock."""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from jaxcluster import wire
from jaxcluster.allocation.turns import Turn
from jaxcluster.cluster import (
    action_runner,
    between_cells,
    dispatch,
    handle,
    questions,
    recovery,
    replay,
    restoring,
    running,
    selfcheck,
    undoing,
)
from jaxcluster.cluster import world as worlds
from jaxcluster.cluster.running import CellOptions
from jaxcluster.engine import cell_queue, strict
from jaxcluster.engine import gate as gates
from jaxcluster.errors import JaxClusterError, RankDied, RecoveryError
from jaxcluster.host.procfs import Silence
from jaxcluster.lockstep import replaying
from jaxcluster.model.lineage import Lineage
from jaxcluster.model.long_launches import UsualTimes
from jaxcluster.records import lastreport
from jaxcluster.wire.link import LOOK_S, Event
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.lockstep import State
from sim import ranks as sim_ranks
from sim import restarts as sim_restarts
from sim.hub import Hub, PatientTime, Sink, Time

MODULES = (
    running, action_runner, replay, selfcheck, undoing, questions, dispatch, worlds, recovery,
    between_cells, handle, restoring,
)  # fmt: skip

OTHERS = "The notebook that started it can restart it."

DELAYS_S = (0.0003, 0.001, 0.001, 0.004)
LATE_S = (0.05, 0.3, 0.7)
CUT_OFF_S = (2.1, 2.6, 4.0)  # beyond what a rank holds the next cell back
LOST = 0.3  # of the ranks: a cell that is on its way to them as its notebook ends


def _reports_of(polls: Mapping[int, wire.PollReply]) -> dict[int, wire.RankReport]:
    """Nothing travels here, so nothing is encoded."""
    return {rank: reply.report for rank, reply in polls.items()}


@contextlib.contextmanager
def virtual(hub: Hub) -> Iterator[None]:
    """Inside it the notebook's code waits on the virtual clock."""
    clock = Time(hub)
    Sink.hub = hub
    kept: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        kept.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    for module in MODULES:
        if hasattr(module, "time"):
            put(module, "time", clock)
        if hasattr(module, "Sink"):
            put(module, "Sink", Sink)
    put(wire, "reports_of", _reports_of)
    put(running.RunningCell, "carry_unwaited", lambda cell: None)  # each has an actor
    put(lastreport, "made_of", lambda *found: None)  # nobody asks for it later
    put(replaying, "STEP_S", 0.05)
    put(selfcheck, "CHECK_S", sim_ranks.CHECK_S)
    put(strict, "time", PatientTime(hub))
    put(strict, "get_ident", lambda: id(hub.running))
    put(gates, "asyncio", SimpleNamespace(sleep=sim_ranks.pause, CancelledError=TimeoutError))
    put(gates, "json", SimpleNamespace(dumps=dict, loads=dict))
    put(cell_queue, "threading", sim_ranks.Timers(hub))
    put(dispatch, "who_we_are", lambda: "sim")
    put(dispatch.stopbutton, "held", lambda: contextlib.nullcontext([]))
    try:
        yield
    finally:
        for owner, name, value in reversed(kept):
            setattr(owner, name, value)


class Link:
    """One notebook's way to the ranks: late, and in order for each rank."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cluster, self.hub = client.cluster, client.cluster.hub
        self.ranks = list(range(self.cluster.num_ranks))
        self.generation, self._ids = self.cluster.generation, itertools.count(1)
        self._asked: dict[str, sim_ranks.Request] = {}
        # When the last message to, and from, each rank arrives.
        self._to, self._back = [0.0] * len(self.ranks), [0.0] * len(self.ranks)
        self._dead: dict[int, Any] = {}
        self._is_cut = False
        self.lost: set[int] = set()  # ranks to which no cell comes that is on its way

    def cut(self) -> None:
        """Nothing more goes from this notebook, or comes to it."""
        self._is_cut = True
        self.lost = {rank for rank in self.ranks if self.hub.chance.random() < LOST}
        self.forget(list(self._asked))

    def _soon(self, rank: int, last: list[float], more: float = 0.0) -> float:
        """When what is sent now arrives, behind the ``last`` of this way."""
        chance = self.hub.chance.random
        delay = DELAYS_S[int(4 * chance())]
        if chance() < self.client.lateness:
            delay += LATE_S[int(3 * chance())]
        when = self.hub.now + delay + more
        if when < last[rank]:
            return last[rank]
        last[rank] = when
        return when

    def _cut_off(self) -> float:
        """How long a rank's host can't be reached, so that other notebooks' cells come first."""
        chance = self.hub.chance.random
        return CUT_OFF_S[int(3 * chance())] if chance() < self.cluster.cut_off else 0.0

    def request(
        self, rank: int, request: Operation[Any], *, buffers: Sequence[Any] = (), sink: Any
    ) -> str:
        return self.request_each({rank: request}, sink=sink)[0]

    def request_each(
        self,
        each: Mapping[int, Operation[Any]],
        *,
        buffers: Sequence[Any] = (),
        sink: Any,
    ) -> list[str]:
        ids = []
        for rank, body in each.items():
            ids.append(name := f"{self.generation}-{next(self._ids)}")
            if self._is_cut:
                continue
            if rank in self._dead:
                sink.put(Event(rank, "died", name, self._dead[rank]))
                continue
            self._asked[name] = request = sim_ranks.Request(self, rank, body.op, name, body, sink)
            more = 0.0
            if body.op == "cell" and self.cluster.cut_off:
                more = self._cut_off()
            self.hub.at(self._soon(rank, self._to, more), request.arrive)
        return ids

    def deliver(self, request: sim_ranks.Request, answer: Event[Any], soon: float) -> None:
        request.due = self._soon(request.rank, self._back, soon)
        if self._asked.get(request.id) is request:
            request.answer = answer
            request.sink.bring(request.due, answer)

    def gather(
        self,
        ranks: Iterable[int],
        request: Any,
        *,
        timeout_s: float,
        buffers: Sequence[Any] = (),
        check: Callable[[], None] | None = None,
        on_answer: Callable[[Event[Any]], object] = bool,
    ) -> dict[int, Event[Any]]:
        sink, until = Sink(), self.hub.now + timeout_s
        each = (
            {r: request[r] for r in ranks}
            if type(request) is dict
            else dict.fromkeys(ranks, request)
        )
        asked = self.request_each(each, sink=sink)
        try:
            if check is None:
                return {event.rank: event for event in sink.gather(len(asked), timeout_s)}
            found: dict[int, Event[Any]] = {}
            while len(found) < len(asked) and self.hub.now < until:
                check()
                with contextlib.suppress(queue.Empty):
                    event = sink.get(timeout=min(LOOK_S, until - self.hub.now))
                    found[event.rank] = event
                    on_answer(event)
            return found
        finally:
            self.forget(asked)

    def forget(self, ids: Iterable[str]) -> None:
        for name in ids:
            if (request := self._asked.pop(name, None)) is not None:
                self._lose(request)

    def _lose(self, request: sim_ranks.Request) -> bool:
        """Whether its answer has not come yet; then it never will."""
        if request.due <= self.hub.now:
            return False
        request.sink.drop(request.answer)
        return True

    def post(self, event: Event[Any]) -> None:
        """What a rank says unasked."""
        world = self.client.world
        self.hub.at(self._soon(event.rank, self._back), lambda: world._hear_of_variables(event))

    @property
    def dead(self) -> dict[int, Any]:
        return dict(self._dead)

    def mark_dead(self, rank: int, death: wire.Death) -> None:
        self._dead.setdefault(rank, death)
        for request in list(self._asked.values()):
            if request.rank == rank:
                del self._asked[request.id]
                if self._lose(request):
                    request.sink.put(Event(rank, "died", request.id, self._dead[rank]))


class Turns:
    """The lock of the folder of a generation of ranks."""

    def __init__(self, cluster: sim_ranks.Cluster) -> None:
        self.cluster, self._generation = cluster, cluster.generation

    @contextlib.contextmanager
    def quiet(self) -> Iterator[dict[int, int]]:
        cluster = self.cluster
        while cluster.turn_taken:
            cluster.hub.block(lambda: not cluster.turn_taken)
        cluster.turn_taken = True
        try:
            yield dict(cluster.last)
        finally:
            cluster.turn_taken = False

    @contextlib.contextmanager
    def take(self, ranks: Iterable[int] = (), say: Any = None) -> Iterator[Turn]:
        with self.quiet():
            self.cluster.seq += 1
            turn = Turn(self.cluster.seq)
            turn.after = {rank: self.cluster.last.get(rank, 0) for rank in ranks}
            if self._generation == self.cluster.generation:
                self.cluster.last.update(dict.fromkeys(turn.after, int(turn)))
            yield turn

    def last_cells(self) -> dict[int, int]:
        return dict(self.cluster.last)


class World:
    """One notebook's view of one generation of ranks."""

    open_gates = worlds.World.open_gates
    check_ranks = worlds.World.check_ranks
    hear_names = worlds.World.hear_names
    hear_undo = worlds.World.hear_undo
    _hear_of_variables = worlds.World._hear_of_variables
    hear_bound = worlds.World.hear_bound
    hear_unbound = worlds.World.hear_unbound
    ask = worlds.World.ask
    all_of = worlds.World.all_of
    unanswered = worlds.World.unanswered
    meet = worlds.World.meet
    is_ours = True
    idle_hosts: Sequence[str] = ()

    def __init__(self, client: Client) -> None:
        self.client = client
        self.link = client.link
        self.num_processes = client.cluster.num_ranks
        self.turns = Turns(client.cluster)
        own = client.cluster.restarts
        keys = own.hosts if own is not None else ()
        self.record = SimpleNamespace(
            spec=SimpleNamespace(platform="cpu"),
            last_seq=client.cluster.seq,
            facts=[SimpleNamespace(host_key=number) for number in keys],
        )
        self.dead: dict[int, dict[str, Any]] = {}
        self.counts: dict[int, Any] = {}
        self.pending_launches: list[Any] = []
        self.hosts = {r: f"h{n}" for r, n in enumerate(keys)} if len(set(keys)) > 1 else {}
        self.told: dict[int, Any] = {}
        self.own_cells: set[int] = set()
        self.looks: set[int] = set()
        self.last_launches: dict[int, Any] = {}
        self.unreachable: dict[str, str] = {}
        self.divergence = None
        self.is_over, self.is_strict = False, client.cluster.is_strict
        self.has_met, self.coordinator_died = True, ""
        self.stays = UsualTimes()

    @property
    def processes(self) -> World:
        return self

    @property
    def is_broken(self) -> bool:
        return bool(self.dead or self.divergence is not None)

    def check(self) -> None:
        """It is open."""

    def status(self) -> list[wire.RankState]:
        answers = self.link.gather(self.link.ranks, State(), timeout_s=2.0)
        return [
            answers[r].body
            if r in answers and answers[r].op == "reply"
            else wire.RankState(r, 0, "here", "dead" if r in answers else "silent")
            for r in self.link.ranks
        ]

    def look_at(self, ranks: Iterable[int]) -> dict[int, Any]:
        return {}

    def why_unseen(self, rank: int) -> Silence:
        return Silence("unknown", "is not responding")

    def state_folder(self) -> Any:
        return sim_restarts.folder_of(self.client.cluster)

    def end_hung(self, check: Any) -> list[int]:
        return []

    def say_log_end(self, rank: int) -> str:
        return ""

    def end_rank(self, rank: int, why: str) -> None:
        raise AssertionError(f"rank {rank} was ended: {why}")


class Changing:
    """In place of a cluster's lock: who has it gets it again."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._owner: Any = None
        self._times = 0

    def __enter__(self) -> None:
        own = self._hub.running
        while self._owner not in (None, own):
            self._hub.block(lambda: self._owner is None)
        self._owner, self._times = own, self._times + 1

    def __exit__(self, *raised: object) -> None:
        self._times -= 1
        self._owner = self._owner if self._times else None


class Client:
    """A notebook: the real dispatcher with cells of its own."""

    name, recovery = "sim", "auto"
    restored: Any = None
    kept: Any = None
    is_down = False  # it has no processes
    life, down_hint = SimpleNamespace(why=""), ""

    def __init__(self, cluster: sim_ranks.Cluster, number: int, lateness: float) -> None:
        self.cluster, self.number, self.lateness = cluster, number, lateness
        self.ident = f"client-{number}".encode()
        self.recovered = ""
        self.lineage = Lineage()
        self.past_reports = lastreport.Reports("sim")
        self.others: list[Client] = []
        self.dispatcher = dispatch.Dispatcher(self)  # type: ignore[arg-type]
        self.begin()
        self.restarts = 0
        self.changing = Changing(cluster.hub)
        self.is_restarting = False
        self.hear: Any = None  # what the cells of acts say

    def begin(self) -> None:
        self.link = Link(self)
        self.world = World(self)
        self.dispatcher.begin()

    @property
    def cells(self) -> list[running.RunningCell]:
        return self.dispatcher.cells

    @property
    def sent(self) -> list[running.RunningCell]:
        return self.dispatcher.sent

    @property
    def can_restart(self) -> bool:
        """Only the notebook that has started it can; the other one is attached."""
        return self is self.cluster.owner

    def press_stop(self) -> None:
        """No new processes are waited for on another thread."""

    def ensure_open(self) -> None:
        if self.world.dead:
            dead = sorted(self.world.dead)
            done = self.recover("", message="", when="", undo=False)
            raise RankDied("died, so the cell was not run", done, dead)

    def recover(self, evidence: str, *, message: str, when: str, undo: bool) -> str:
        """New processes, with the variables that live; other notebooks attach to them."""
        if not self.can_restart:
            return "\n".join(filter(None, [evidence, OTHERS]))
        with self.changing:
            if self.world.is_broken:  # nobody has done it meanwhile
                self.recovered = self._restart(when, undo)
        return "\n".join(filter(None, [evidence, self.recovered]))

    def _restart(self, when: str, undo: bool) -> str:
        self.restarts += 1
        self.is_restarting = True
        try:
            if self.cluster.restarts is not None:
                return sim_restarts.recover(self, when, undo)
            with self.world.turns.quiet():
                self._give_new_processes(undo)
            return "New processes have the variables."
        finally:
            self.is_restarting = False

    def _give_new_processes(self, undo: bool) -> None:
        cluster = self.cluster
        cluster.hub.block(None, 0.5)
        old = [(client, client.link, client.world) for client in [self, *self.others]]
        cluster.replace(undo)
        self.begin()
        for _, link, world in old:
            world.is_over = True
            for rank in link.ranks:
                link.mark_dead(rank, wire.Death("the cluster was restarted"))

    # What a restart asks of its notebook (``action_runner.Owner``), by its real code.

    @property
    def closed(self) -> bool:
        return self.is_down

    @property
    def down(self) -> str:
        return "It has no processes." if self.is_down else ""

    def check_returns(self) -> None:
        """There are other hosts for those that are lost."""

    def leave_down(self, why: str) -> None:
        self.is_down = True

    def respawn(self, progress: Any, watch: Any) -> None:
        self.cluster.restarts.make_whole()
        self._give_new_processes(undo=False)
        watch(None)

    def equip(self) -> None:
        """There is nothing to be set on the new ranks."""

    # What is done between cells (``acts``).

    @property
    def last(self) -> Any:
        return self.dispatcher.last

    @property
    def dead(self) -> Mapping[int, Any]:
        return self.world.dead

    @property
    def divergence(self) -> Any:
        return self.world.divergence

    @property
    def is_broken(self) -> bool:
        return self.world.is_broken

    def check_not_closed(self) -> None:
        """It is open."""

    def carry_unwaited(self) -> None:
        """Each of its cells is carried by an actor."""

    def restart(self) -> str:
        if not self.can_restart:
            raise RecoveryError("The ranks can't be brought back.", OTHERS)
        with self.changing:
            return self._restart("", undo=False)

    def attach(self) -> None:
        """To the new ranks, where the last ones are gone."""
        if self.world.is_over:
            self.begin()
            self.hear_of_the_dead()

    def hear_of_the_dead(self) -> None:
        for rank in self.cluster.ranks:
            if rank.is_dead:
                death = wire.Death("killed by SIGKILL", -9)
                self.world.dead[rank.number] = death
                self.link.mark_dead(rank.number, death)

    def submit(
        self, source: str, ranks: Sequence[int] | None = None, timeout_s: float | None = None
    ) -> Any:
        self.attach()
        return self._submit(source, CellOptions(ranks, timeout_s))

    def _submit(self, source: str, options: CellOptions) -> Any:
        with self.changing, contextlib.ExitStack() as on_its_way:
            cell, _ = self.dispatcher.send(source, options, on_its_way)
        cell.runner.on_notice = self.hear
        return cell


def outcome(cell: running.RunningCell) -> BaseException | None:
    """How a cell has ended."""
    try:
        cell.wait()
    except (JaxClusterError, KeyboardInterrupt) as error:
        return error
    return None
