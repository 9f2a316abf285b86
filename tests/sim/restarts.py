"""What simulated ranks save, and what comes back of it on new processes.

The real code decides and writes: what is saved, the folders of hosts, the plan, the restart. Files
are real ones, in memory. Only the values themselves are simulated: an array's numbers are the
number of the simulated value.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxcluster import wire
from jaxcluster.agent import requests
from jaxcluster.agent.folder import Folder
from jaxcluster.agent.report import AgentFacts
from jaxcluster.allocation import states
from jaxcluster.allocation.fleet import Place
from jaxcluster.cluster import respawn, restart, restoring
from jaxcluster.engine import change_notices, state
from jaxcluster.engine.digests import LITERAL, is_literal
from jaxcluster.engine.lost_names import LostNames
from jaxcluster.engine.state import loading, saving
from jaxcluster.engine.state.saved import CannotSave, SavedArray
from jaxcluster.errors import JaxClusterError, LaunchError
from jaxcluster.records import saved_states
from jaxcluster.wire.link import Event
from sim.hub import Hub, Time
from sim.programs import Losses
from sim.truth import Value

MEMORY = Path("/dev/shm")
ROOM = 1 << 30
ARRAY_NBYTES = 8


# ------------------------------------------------------------------------------ values and files


class Values:
    """All simulated values by their numbers, which files have in their place."""

    def __init__(self) -> None:
        self.found: list[Value] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: Value) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.found)
            self.found.append(value)
        return self._numbers[id(value)]


def save_array(values: Values, saver: Any, value: Value) -> SavedArray:
    """In place of ``_Saver._save_array``."""
    if not value.is_ready:
        raise CannotSave("still being computed")
    if value.failed:
        raise CannotSave("its computation failed: Connection closed by peer")
    numbers = np.array([values.number(value)], np.int64).view(np.uint8)
    section = saver.section(saver._numbers(value, numbers, "[]"))
    return SavedArray([], "int64", -1, False, True, [([], section)], text=value.made.where)


def load_array(values: Values, loader: Any, number: int) -> Value:
    """In place of ``Loader.make_array``."""
    [(_, section)] = loader.saved.arrays[number].shards
    return values.found[int(np.frombuffer(loader.saved.sections[section], np.int64)[0])]


def text_of(value: Any) -> str:
    """As ``engine.digests`` has it."""
    return LITERAL + repr(value) if is_literal(value) else ""


FAKE_JAX: Any = SimpleNamespace(
    __version__="sim",
    Device=type("Device", (), {}),
    Array=type("Array", (), {}),
    sharding=SimpleNamespace(
        Mesh=type("Mesh", (), {}),
        SingleDeviceSharding=type("Single", (), {}),
        Sharding=type("Sharding", (), {}),
        PartitionSpec=type("Spec", (), {}),
    ),
    custom_vjp=type("vjp", (), {}),
    custom_jvp=type("jvp", (), {}),
    jit=lambda function: SimpleNamespace(),
    process_index=lambda: 0,
    local_devices=list,
    devices=list,
)


@contextlib.contextmanager
def virtual(hub: Hub, own: Restarts) -> Iterator[None]:
    """Inside it the product's code of restarts runs on the virtual clock."""
    clock, values = Time(hub), own.values
    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, **named: Any) -> None:
        for name, value in named.items():
            undo.append((owner, name, vars(owner).get(name)))
            setattr(owner, name, value)

    timed = SimpleNamespace(
        monotonic=clock.monotonic, sleep=clock.sleep, time=clock.time,
        perf_counter=clock.monotonic,
    )  # fmt: skip
    put(saving, is_array=lambda value: type(value) is Value, is_common=_is_common, _text=text_of,
        is_ready=lambda value: value.is_ready)  # fmt: skip
    put(saving.randomness, digests=lambda: {**dict.fromkeys(restart.RANDOM, ""), "seeded": False})
    put(saving._Saver, _save_array=lambda saver, value: save_array(values, saver, value))
    put(loading.Loader, make_array=lambda loader, number: load_array(values, loader, number))
    for module in (requests, saved_states):
        put(module, memory_room=lambda path: ROOM)
    put(requests, free_nbytes=lambda path: ROOM)
    put(saved_states, SHARED_MEMORY=own.folder, _parents=lambda: [own.folder])
    put(states, time=timed)
    put(change_notices.wire, encode=lambda op, id, body: (op, body))
    put(respawn, time=timed)
    put(restoring, time=timed)
    jax = sys.modules.get("jax")
    FAKE_JAX.process_count = FAKE_JAX.device_count = lambda: own.num_ranks
    sys.modules["jax"] = FAKE_JAX
    try:
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)
        if jax is None:
            del sys.modules["jax"]
        else:
            sys.modules["jax"] = jax
        own.remove()


def _is_common(value: Any) -> bool:
    return type(value) is Value


# ------------------------------------------------------------------------------------ the hosts


class PlainFolder(Folder):
    """Nobody puts links there."""

    def inside(self, name: str) -> Path:
        return self.path / name


class Agent:
    """One host's, and what is there."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = PlainFolder(folder / f"disk-{number}", folder / f"memory-{number}")
        for path in (self.folder.path, self.folder.memory):
            path.mkdir()
        self.is_lost = False

    def ask(self, request: requests.Request[Any], timeout_s: float, data: bytes = b"") -> Any:
        return self.begin(request, data).wait(timeout_s)[0]

    def _answer(self, request: requests.Request[Any], data: bytes) -> tuple[Any, Any]:
        if self.is_lost:
            raise LaunchError("it does not answer.")
        if request.cmd in ("give_out", "ways"):  # all is brought through the notebook
            raise LaunchError("no host reaches another one here.")
        try:
            return requests.answer(self.folder, request, data)
        except OSError as error:
            raise LaunchError(f"{error.strerror}.") from None

    def begin(self, request: requests.Request[Any], data: bytes = b"") -> Any:
        wait, forget = lambda timeout_s: self._answer(request, data), lambda: None
        return SimpleNamespace(wait=wait, forget=forget)

    def facts(self, host: AgentFacts) -> AgentFacts:
        return replace(host, folder=str(self.folder.path), memory=str(self.folder.memory))

    def chunks(self, path: str) -> Iterator[tuple[int, bytes]]:
        yield 0, self.begin(requests.Get(path)).wait(1.0)[1]


class Fleet:
    """The hosts of a cluster, as far as folders know them."""

    def __init__(self, folder: Path, hosts: Sequence[int]) -> None:
        self.places: list[Any] = []
        for number in sorted(set(hosts)):
            agent = Agent(folder, number)
            facts = agent.facts(AgentFacts(host_key=str(number)))
            ranks = range(hosts.index(number), hosts.index(number) + hosts.count(number))
            self.places.append(Place(number, f"h{number}", agent, facts, ranks))  # type: ignore[arg-type]

    def homes(self) -> dict[int, Place]:
        return {rank: place for place in self.places for rank in place.ranks}

    def place_of(self, rank: int) -> Place:
        return self.homes()[rank]

    def lose(self, number: int) -> list[int]:
        """A host goes; another machine takes its place when ranks are given new processes."""
        place = self.places[number]
        place.lost, place.gone, place.agent.is_lost = "it is cut off", True, True
        return list(place.ranks)

    def make_whole(self, folder: Path) -> None:
        """Other machines in the place of those that are lost."""
        for at, place in enumerate(self.places):
            if place.lost:
                folder = Path(tempfile.mkdtemp(dir=folder))
                agent = Agent(folder, place.number)
                facts = agent.facts(place.facts)
                self.places[at] = Place(place.number, place.name, agent, facts, place.ranks)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ the ranks


class Restarts:
    """What is saved of one simulated cluster's ranks, whatever generation."""

    def __init__(self, losses: Losses, num_ranks: int) -> None:
        self.hosts, self.num_ranks = losses.hosts, num_ranks
        self.folder = Path(tempfile.mkdtemp(prefix="sim-", dir=MEMORY if MEMORY.is_dir() else None))
        self.values = Values()
        self.fleet = Fleet(self.folder, losses.hosts) if losses.hosts else None
        self.states: list[saved_states.LocalStates] = []
        self.pictures: dict[int, Picture] | None = None

    def remove(self) -> None:
        for folder in self.states:
            folder.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def make_whole(self) -> None:
        """There are other machines in the place of lost ones."""
        if self.fleet is not None:
            self.fleet.make_whole(self.folder)

    def photograph(self, ranks: Sequence[Any]) -> None:
        """What is to come back, as nobody but the test knows it: once for each loss."""
        if self.pictures is None:
            self.pictures = {rank.number: picture_of(rank) for rank in ranks}


class Told:
    """What notebooks are told of a rank's names: see ``engine.names``."""

    def __init__(self) -> None:
        self.spoiled: set[bytes] = set()
        self.values = SimpleNamespace(note=lambda *course: None)
        self._told: dict[bytes, dict[str, Any]] = {}

    def spoil(self, notebook: bytes) -> None:
        self.spoiled.add(notebook)

    def changes(self, notebook: bytes, names: Mapping[str, Any]) -> wire.NameChanges | None:
        if notebook in self.spoiled:
            self.spoiled.discard(notebook)
            self._told.pop(notebook, None)
        now, told = dict(names), self._told.get(notebook)
        before = told or {}
        self._told[notebook] = now
        bound = [n for n in now if n not in before or before[n] is not now[n]]
        gone = [n for n in before if n not in now]
        values = {n: text_of(now[n]) for n in bound}
        return wire.NameChanges(bound, gone, told is None, values)


class Ways:
    """A rank's ways to its notebooks: see ``engine.control``."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank

    def others(self, ident: bytes) -> list[bytes]:
        return [client.ident for client in self._clients if client.ident != ident]

    @property
    def _clients(self) -> list[Any]:
        owner = self._rank.cluster.owner
        return [owner, *owner.others]

    def is_behind(self, ident: bytes) -> bool:
        return False

    def post(self, ident: bytes, event: tuple[str, Any]) -> None:
        op, body = event
        for client in self._clients:
            if client.ident == ident:
                client.link.post(Event(self._rank.number, op, "", body))

    def call_main(self, do: Callable[[], None]) -> None:
        do()


def others_of(rank: Any, told: Told) -> change_notices.ChangeNotices:
    made = change_notices.ChangeNotices(Ways(rank), told, lambda: rank.current is not None)  # type: ignore[arg-type]

    def call_later(seconds: float, do: Callable[[], None]) -> change_notices.Timer:
        timer = Timer(do, rank)
        rank.hub.at(rank.hub.now + seconds, timer.ring)
        return timer

    made.attach(rank.names, call_later)
    return made


class Timer:
    """Of a rank's loop."""

    def __init__(self, do: Callable[[], None], rank: Any) -> None:
        self._do, self._rank, self._is_off = do, rank, False

    def cancel(self) -> None:
        self._is_off = True

    def ring(self) -> None:
        if not (self._is_off or self._rank.is_dead):
            self._do()


@dataclass
class Picture:
    """A rank as it was before it got a new process.

    Attributes:
      new, old: its names then, and before the last cell that has begun on it (``seq``).
      olds: those before each cell.
    """

    new: dict[str, Any]
    old: dict[str, Any]
    seq: int
    is_dead: bool
    olds: dict[int, dict[str, Any]]

    def at(self, seq: int) -> dict[str, Any]:
        """Its names before a cell, or another one behind it."""
        behind = [one for one in self.olds if seq <= one <= self.seq]
        return self.olds[min(behind)] if behind else self.new


def picture_of(rank: Any) -> Picture:
    before = rank.before
    old, seq = (before.names, before.seq) if before is not None else (rank.names, 0)
    new = rank.names if rank.saved is None else rank.saved
    running, is_saved = rank.current, rank.saved is not None
    if rank.is_dead and not is_saved and running is not None and running.seq == seq:
        new = old  # of what the cell did there nobody knows
    return Picture(dict(new), dict(old), seq, rank.is_dead, dict(rank.olds))


def answer(rank: Any, op: str, body: Any) -> Any:
    """What the product's own code answers, on a simulated rank."""
    number = rank.number
    if op == "snapshot":
        rank.saved = dict(rank.names)
        before = rank.names_before(body.cell)
        saved = state.on_snapshot(rank.names, number, body, before, rank.lost, None)
        return replace(saved, sources=dict(rank.queue.sources))
    if op == "restore_look":
        return rank.restoring.look(rank.names, number, body)
    if op == "restore_drop":
        return rank.restoring.drop(body.token)
    if op == "restore_bind":
        rank.before, lost = None, LostNames()
        done = rank.restoring.bind(rank.names, body, lost, None)
        rank.lost |= lost.reasons
        return replace(done, values={n: text_of(rank.names[n]) for n in done.restored})
    assert op == "unbind"
    for name in body.names:
        rank.names.pop(name, None)
    rank.lost |= body.lost
    return None


# --------------------------------------------------------------------------------- the notebook


def folder_of(cluster: Any) -> Any:
    own = cluster.restarts
    if own.fleet is not None:
        return states.HostStates(own.fleet)
    made = saved_states.LocalStates(cluster.num_ranks)
    own.states.append(made)
    return made


def recover(owner: Any, when: str, undo: bool) -> str:
    """New processes by the real restart; what came of it is looked at."""
    cluster = owner.cluster
    own = cluster.restarts
    theirs = [cell for client in owner.others for cell in client.sent]
    open_ = [cell.record for cell in theirs if not cell.done]
    records = [cell.record for cell in [*owner.sent, *theirs]]
    for _ in range(3):  # it fails, and the user tries again
        made = respawn.Respawn(owner, when=when, undo=undo)
        try:
            made._replace(lambda line: None)
        except JaxClusterError as error:
            if not owner.is_down:
                return f"Recovery failed: {error}"
            continue
        owner.restored, owner.is_down = made.restored, False
        assert made.restored is not None and own.pictures is not None
        begun = max(one.seq for one in own.pictures.values())
        left = [one for one in records if not one.replies.keys() >= {*one.ranks}]
        left = [one for one in left if one.seq not in made.restored.undone]
        # Behind one that was taken back others may have begun on some ranks, and are told.
        known = {r.seq: r for r in records if r.seq <= begun or r.undone}
        whole = [seq for seq, one in known.items() if not (one.undone or one in left)]
        # The moment before it is past where a living rank has begun another one since.
        lived = [one.seq - 1 for one in own.pictures.values() if not one.is_dead]
        since = max([0, *whole, *lived])
        taken = [seq for seq, one in known.items() if one.undone and seq > since]
        undone = min(made.restored.undone or taken, default=0)
        told = {name for one in left for name in restart.bound_names(one.source)}  # by these cells
        told |= {n for one in records if one.undone for n in restart.bound_names(one.source)}
        # The other notebook's cell that has not ended says that it can't be undone any more.
        doubted = {
            name for one in open_ if not one.undone for name in restart.bound_names(one.source)
        }
        cluster.wrong += judge(own.pictures, cluster.ranks, made.restored, undone, told, doubted)
        own.pictures = None
        return str(made.restored)
    return "Recovery failed."


# -------------------------------------------------------------------------------- what is right


def judge(
    were: Mapping[int, Picture],
    ranks: Sequence[Any],
    done: restart.Restored,
    undone: int,
    told: AbstractSet[str],
    doubted: AbstractSet[str],
) -> list[str]:
    """Each name is what it was, of one moment on all ranks, or is said to be lost.

    Args:
      doubted: those of which nothing is promised.
      undone: the cell that was taken back on all ranks; 0: none was.
      told: names that are not to be trusted, as the cells say that have bound them.
    """
    broken: list[str] = []
    if done.nothing_lived or (done.gone and not done.kept):  # all of it, as it says
        return broken
    last = undone or max((one.seq for one in were.values()), default=0)
    all_died = all(one.is_dead for one in were.values())
    # Cells that wait for a cell which is taken back are not run, and are taken back with it.
    then = {rank: one.at(last) for rank, one in were.items()}
    now = {rank: one.new for rank, one in were.items()}
    names = {name for one in (*then.values(), *now.values()) for name in one}
    names |= {name for rank in ranks for name in rank.names}
    for name in sorted(names - doubted):
        if any(_is_wrong(moment[rank].get(name)) for moment in (now, then) for rank in moment):
            continue  # the cell that has made it says so
        has = {rank.number: key(rank.names.get(name)) for rank in ranks}
        moments = [then] if undone else [now, then]
        why = [_why_wrong(name, has, were, moment, done, told) for moment in moments]
        if all(why):
            broken.append(f"K1: {name} has come back as {has}, {why[0]}")
        elif not (undone or all_died) and why[0] and name not in {*done.older, *told}:
            broken.append(f"K2: {name} is as before the cell, and nobody says so: {has}")
    return broken


def _is_wrong(value: Any) -> bool:
    return type(value) is Value and bool(value.tainted)


def _why_wrong(
    name: str,
    has: Mapping[int, Any],
    were: Mapping[int, Picture],
    moment: Mapping[int, Mapping[str, Any]],
    done: restart.Restored,
    told: AbstractSet[str],
) -> str:
    wanted = {rank: key(moment[rank].get(name)) for rank in moment}
    living = {wanted[rank] for rank, one in were.items() if not one.is_dead}
    for rank, value in has.items():
        if value == wanted[rank]:
            continue
        if value is None and (name in done.lost or name in told):
            continue
        if value is None and were[rank].is_dead and living == {None} and done.notes:
            continue  # it has told of no such name, and that is said
        is_common = value is not None and value[0] == "array"
        if were[rank].is_dead and is_common and living == {value}:
            continue  # can be no rank's own
        if (
            were[rank].is_dead
            and value == key(rank)
            and all(wanted[r] == key(r) for r, one in were.items() if not one.is_dead)
        ):
            continue  # each rank's own number
        return f"and was {wanted}: rank {rank}"
    return ""


def key(value: Any) -> Any:
    """What is equal of equal values."""
    if value is None:
        return None
    if type(value) is Value:
        made = value.made
        return "array", made.meant, made.where, min((id(m) for m in made.met), default=id(made))
    return "plain", value
