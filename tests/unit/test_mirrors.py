"""A rank's copy in another host's memory: what is there, and when it is too old to come back."""

from __future__ import annotations

import json
import math
import random
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from helpers import until

from jaxcluster import wire
from jaxcluster.agent import transport
from jaxcluster.agent.folder import Folder
from jaxcluster.agent.mirrors import Mirrors
from jaxcluster.engine.state import mirror
from jaxcluster.engine.state.copier import Copier
from jaxcluster.engine.state.mirror import Mirror

# --------------------------------------------------------------------------- too old, or not


class LateMark:
    """A rank, and the mark that another host has of it."""

    def __init__(self, rank: int, told: dict[int, tuple[int, int]], owner: bytes = b"") -> None:
        self.copier = Copier(rank)
        self.copier.owner = owner
        self.copier._store = self.copier._mirror = self  # type: ignore[assignment]
        self.copier._earned_from = math.inf  # no cell waits
        self.copier.tell = lambda begun, outside: self.tells.append((begun, outside))
        self.tells: list[tuple[int, int]] = []
        self.told = told
        self.value, self.values = 0, {0: 0}  # of the variables, by version
        self.before = 0
        self.mark = wire.Mark()
        self.version = 0
        self.there: set[int] = set()

    def copy(self) -> None:
        """A version of now is whole in the host's own memory."""
        if not self.copier._is_running and self.copier._state not in self.copier._versions:
            self.version += 1
            self.copier._versions[self.copier._state] = self.version
            self.values[self.version] = self.value

    def deliver(self, rng: random.Random) -> None:
        """Another host has some of the versions, and a mark that names no others."""
        now = self.copier.mark()
        self.there |= {n for n in (now.before, now.after) if rng.random() < 0.8}
        before, after = (n if n in self.there else 0 for n in (now.before, now.after))
        self.mark = wire.Mark(
            now.number, now.begun, now.ended, before, after, 0,
            now.outside, now.entered, now.lately,
        )  # fmt: skip

    def hear(self) -> None:
        """The notebook has what the rank told."""
        if self.tells:
            self.told[self.copier.rank] = self.tells[-1]

    def begin(self, seq: int, whose: bytes = b"") -> None:
        self.before = self.value
        self.copier.begin(seq, whose)

    def end(self, seq: int, is_same: bool) -> None:
        self.value += not is_same
        self.copier.end(seq, is_same)

    # ------------------------------------------------------------------ as a mirror has it

    seconds, is_behind = 0.0, True

    def wake(self) -> None:
        pass


class Course:
    """A notebook with a rank that will be lost, and one that lives; both run the same cells."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.told: dict[int, tuple[int, int]] = {}
        self.lost, self.living = LateMark(0, self.told), LateMark(1, self.told)
        self.seq = self.after = self.own = 0
        self.running: list[LateMark] = []  # those that have not ended the last cell ...
        self.waiting: list[LateMark] = []  # ... and those that have not begun it

    def step(self) -> None:
        kinds = ["send", "begin", "end", "push", "client", "foreign"]
        getattr(self, self.rng.choice([*kinds, *["copy", "deliver"] * 3]))()

    def send(self) -> None:
        if not self.running and not self.waiting:
            self.own, self.after = self.seq + 1, self.seq
            self.seq = self.own
            self.waiting = [self.lost, self.living]

    def begin(self) -> None:
        if self.waiting:
            rank = self.waiting.pop(self.rng.randrange(len(self.waiting)))
            rank.begin(self.seq)
            self.running.append(rank)

    def end(self) -> None:
        if self.running:
            rank = self.running.pop(self.rng.randrange(len(self.running)))
            rank.end(self.seq, self.rng.random() < 0.3)

    def push(self) -> None:
        """From this notebook, which has its answer."""
        for rank in (self.lost, self.living):
            if rank not in self.running and rank not in self.waiting:
                rank.value += 1
                rank.copier.changed()
                rank.hear()

    def client(self) -> None:
        """Code of an ipyparallel client, on both: what is told of it may not have arrived."""
        if self.living not in self.running:
            for rank in (self.lost, self.living):
                if rank not in self.running:
                    rank.copier.enter()
                    rank.value += 1
                    rank.copier.leave()
                    if self.rng.random() < 0.5:
                        rank.hear()

    def foreign(self) -> None:
        """A cell of another notebook's on the one that will be lost, which this one hears of."""
        if not self.running and not self.waiting:
            self.seq += 1
            self.lost.begin(self.seq, b"another")
            self.lost.end(self.seq, False)
            self.lost.hear()

    def copy(self) -> None:
        for rank in (self.lost, self.living):
            rank.copy()

    def deliver(self) -> None:
        self.lost.deliver(self.rng)

    def taken(self, is_undone: bool) -> tuple[int, int | None]:
        """(what the variables are to be, what they would be); None: they are named as lost."""
        lost, living = self.lost, self.living.copier.mark()
        undone = self.seq if is_undone else 0
        since = wire.Since(self.told.get(0, (0, 0))[1], (living,))
        after = self.after if is_undone else self.seq
        if not is_undone and self.rng.random() < 0.5:  # the first host can't be asked
            after = max(self.own, self.told.get(0, (0, 0))[0])
        version = lost.mark.mirror_for(undone, after, 0, since)
        has_begun = lost.copier.mark().begun == self.seq
        wanted = lost.before if is_undone and has_begun else lost.value
        return wanted, lost.values[version] if version else None


@pytest.mark.parametrize("first", range(0, 4000, 500))
def test_a_mirror_is_taken_only_where_nothing_has_changed_since(first: int) -> None:
    """Random courses of cells, pushes, clients' code, copies, deliveries; then the host is lost."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + 500):
        course = Course(seed)
        for _ in range(course.rng.randrange(60)):
            course.step()
        is_open = bool(course.running or course.waiting)
        wanted, found = course.taken(is_open)
        if found is not None:
            assert found == wanted, f"course {seed}"
        now, living = course.lost.copier.mark(), course.living.copier.mark()
        is_certain = course.lost.mark == now and now.begun == living.begun
        is_certain = is_certain and now.entered == living.entered  # else it is in doubt
        if is_certain and now.after and not is_open:
            assert found == wanted, f"course {seed}: refused, though it is of now"
        seen["taken" if found is not None else "refused"] += 1
    assert min(seen["taken"], seen["refused"]) > 50


# --------------------------------------------------------------------------- what is there


class Host:
    """An agent, as far as it takes in mirrors."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder(path, path)
        self.path = path / "mirrors"
        self.path.mkdir()
        self.keys, self.owner, self.ranks = (transport.new_keys() for _ in range(3))
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.authenticator = transport.Authenticator(self.context, self.owner.public)
        self.authenticator.mirrors = self.ranks.public
        self.router, self.endpoint = transport.open_router(
            self.context, "tcp://127.0.0.1:*", self.keys
        )
        self.mirrors = Mirrors(self.context, self.folder, self.keys, "tcp://127.0.0.1:*")
        self.mirrors.take_for(str(self.path))
        self.asked: list[dict[str, Any]] = []
        self.is_deaf: Callable[[dict[str, Any]], bool] = lambda request: False
        self._answer, self.mirrors._answer = self.mirrors._answer, self._note  # type: ignore[method-assign]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _note(self, request: Any, data: Any) -> dict[str, Any]:
        self.asked.append({**request, "nbytes": len(data)})
        if self.is_deaf(request):
            raise ValueError("it is not answered")
        return self._answer(request, data)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self.authenticator.socket, self.mirrors.socket):
            poller.register(socket, zmq.POLLIN)
        while not self._over.is_set():
            events = dict(poller.poll(10))
            if self.authenticator.socket in events:
                self.authenticator.answer()
            if self.mirrors.socket in events:
                self.mirrors.receive(4)

    def close(self) -> None:
        self._over.set()
        self._thread.join(10)
        self.context.destroy(0)

    def mark(self) -> wire.Mark:
        path = self.path / "copy-3" / "mark"
        return wire.Mark.unpack(path.read_bytes()) if path.exists() else wire.Mark()

    def sent(self) -> dict[str, int]:
        """How many bytes of each file have come, by name."""
        puts = [one for one in self.asked if one["cmd"] == "put"]
        found: Counter[str] = Counter()
        for one in puts:
            found["/".join(one["path"].split("/")[-2:])] += one["nbytes"]
        return dict(found)


class Source:
    """A copier whose versions the test writes."""

    rank = 3
    is_busy = False

    def __init__(self, path: Path) -> None:
        self.path, self.now, self.held = path, wire.Mark(), 0

    def mark(self) -> wire.Mark:
        return self.now

    def hold_version(self, number: int) -> Path | None:
        self.held = number
        folder = self.path / f"v{number}"
        return folder if number and folder.exists() else None

    def is_wanted(self, number: int) -> bool:
        return number in (self.now.before, self.now.after)

    def write(self, number: int, **files: bytes) -> None:
        (self.path / f"v{number}").mkdir(parents=True)
        for name, data in files.items():
            (self.path / f"v{number}" / name).write_bytes(data)

    def become(self, brought: Mirror, **numbers: int) -> None:
        self.now = wire.Mark(number=self.now.number + 1, **numbers)
        brought.wake()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "host").mkdir()
    made = Host(tmp_path / "host")
    yield made
    made.close()


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "own")


def where(host: Host) -> dict[str, str]:
    return {
        "endpoint": host.mirrors.endpoint,
        "server": host.keys.public,
        "public": host.ranks.public,
        "secret": host.ranks.secret,
        "folder": str(host.path),
        "host": "h1",
    }


@pytest.fixture
def brought(host: Host, source: Source, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setattr(mirror, "SILENT_S", 0.5)
    monkeypatch.setattr(mirror, "RETRY_S", 0.05)
    made = Mirror(source, where(host), 1 << 24)
    yield made
    made.stop()
    made._thread.join(10)


LARGE = bytes(range(256)) * (10 << 10)  # 2.5 parts


def until_there(host: Host, source: Source) -> None:
    def is_there() -> bool:
        found, now = host.mark(), source.now
        return (found.before, found.after, found.begun) == (now.before, now.after, now.begun)

    until(is_there, "the mirror", 10)


def test_what_is_the_same_is_sent_once(host: Host, source: Source, brought: Mirror) -> None:
    source.write(1, s1=LARGE, rank=b"one")
    source.become(brought, begun=1, ended=1, after=1)
    until_there(host, source)
    assert host.sent() == {"v1/s1": len(LARGE), "v1/rank": 3}
    source.write(2, s1=LARGE, s2=b"new", rank=b"two")
    source.become(brought, begun=2, ended=2, before=1, after=2)
    until_there(host, source)
    assert host.sent().keys() == {"v1/s1", "v1/rank", "v2/s2", "v2/rank"}
    there = host.path / "copy-3" / "v2"
    assert {p.name: p.read_bytes() for p in there.iterdir()} == {
        "s1": LARGE,
        "s2": b"new",
        "rank": b"two",
    }
    for path in [*there.iterdir(), host.path / "copy-3" / "mark"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    source.become(brought, begun=3, ended=2, before=2)
    until(lambda: not (host.path / "copy-3" / "v1").exists(), "its removal", 10)
    assert (there / "s1").read_bytes() == LARGE
    kinds = [one["cmd"] for one in host.asked]
    assert kinds[-2:] == ["mark", "remove"]  # first it is named no more


def test_a_mark_names_only_what_is_whole(host: Host, source: Source, brought: Mirror) -> None:
    """The other host is cut off in the middle of a version, and comes back."""
    source.write(1, s1=b"old", rank=b"one")
    source.become(brought, begun=1, ended=1, after=1)
    until_there(host, source)
    host.is_deaf = lambda request: request["cmd"] == "put" and request["at"] > 0
    source.write(2, s1=b"old", s2=LARGE, rank=b"two")
    source.become(brought, begun=2, ended=2, before=1, after=2)
    until(lambda: "does not answer" in brought.told(source.now).behind, "the cut", 10)
    found = host.mark()
    assert (found.begun, found.before, found.after) == (2, 1, 0)
    assert not brought.told(source.now).is_current
    host.is_deaf = lambda request: False
    until_there(host, source)
    assert (host.path / "copy-3" / "v2" / "s2").read_bytes() == LARGE
    until(lambda: brought.told(source.now).is_current, "what is told", 10)
    assert not brought.told(source.now).behind


def test_a_version_that_nobody_needs_any_more_is_given_up(
    host: Host, source: Source, brought: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What of its arrays is there whole is not sent again."""
    go_on = mirror.Mirror._give_way

    def give_way(self: Mirror, number: int, seconds: float) -> None:
        if number == 1 and any(one["path"].endswith("v1/s2") for one in host.asked):
            source.now = wire.Mark(9, begun=3, ended=3, after=2)
        go_on(self, number, seconds)

    monkeypatch.setattr(mirror.Mirror, "_give_way", give_way)
    source.write(1, s1=LARGE, s2=LARGE * 3, rank=b"one")
    source.write(2, s1=LARGE, s3=b"new", rank=b"two")
    source.become(brought, begun=2, ended=2, after=1)
    until_there(host, source)
    assert host.mark().after == 2
    until(lambda: not (host.path / "copy-3" / "v1").exists(), "the removal of v1", 10)
    assert "v2/s1" not in host.sent()
    assert (host.path / "copy-3" / "v2" / "s1").read_bytes() == LARGE


def test_what_has_no_room_there_is_told(host: Host, source: Source, brought: Mirror) -> None:
    brought._nbytes = 1 << 20
    source.write(1, s1=LARGE, rank=b"one")
    source.become(brought, begun=1, ended=1, after=1)
    until(lambda: "1 MiB there" in brought.told(source.now).behind, "the reason", 10)
    assert host.mark().after == 0


def request(host: Host, keys: transport.Keys, endpoint: str, **fields: Any) -> dict[str, Any]:
    """What is answered; {}: nothing is."""
    socket = transport.open_dealer(host.context, b"x", host.keys.public, keys)
    socket.setsockopt(zmq.IMMEDIATE, 0)
    for wait in (zmq.SNDTIMEO, zmq.RCVTIMEO):  # a refused connection takes nothing, too
        socket.setsockopt(wait, 400)
    socket.connect(endpoint)
    try:
        socket.send_multipart([json.dumps({"id": 1, "copy": "c", "number": 1, **fields}).encode()])
        found: dict[str, Any] = json.loads(socket.recv())
        return found
    except zmq.Again:
        return {}
    finally:
        socket.close(0)


def test_the_ranks_key_opens_the_mirrors_alone_and_no_other_key_does(host: Host) -> None:
    inside = {"cmd": "mkdir", "path": str(host.path / "copy-3")}
    assert "answer" in request(host, host.ranks, host.mirrors.endpoint, **inside)
    for keys in (host.owner, transport.new_keys()):
        assert request(host, keys, host.mirrors.endpoint, **inside) == {}
    assert request(host, host.ranks, host.endpoint, **inside) == {}
    assert host.authenticator.refused >= 3


def test_nothing_is_read_or_written_but_mirrors(host: Host) -> None:
    (host.path.parent / "secret").write_text("x")
    for fields in (
        {"cmd": "get", "path": str(host.path / "copy-3")},
        {"cmd": "mkdir", "path": str(host.path.parent / "other")},
        {"cmd": "link", "path": str(host.path.parent / "secret"), "to": str(host.path / "s")},
        {"cmd": "remove", "path": str(host.path / ".." / "secret")},
        {"cmd": "put", "path": "/tmp/mirror-of-a-stranger", "at": 0},
    ):
        assert "answer" not in request(host, host.ranks, host.mirrors.endpoint, **fields)
    assert {p.name for p in host.path.parent.iterdir()} == {"mirrors", "secret"}
    assert not [*host.path.iterdir()]
    assert not Path("/tmp/mirror-of-a-stranger").exists()


def test_what_comes_late_from_a_former_connection_is_passed_over(host: Host) -> None:
    inside = {"cmd": "mkdir", "path": str(host.path / "copy-3")}
    assert "answer" in request(host, host.ranks, host.mirrors.endpoint, **inside, number=2)
    assert request(host, host.ranks, host.mirrors.endpoint, **inside, number=1) == {}
    assert "answer" in request(host, host.ranks, host.mirrors.endpoint, **inside, number=2)


def test_nothing_is_taken_in_once_the_folder_is_removed(host: Host) -> None:
    """What was on its way when copies were switched off."""
    host.path.rmdir()
    put = {"cmd": "put", "path": str(host.path / "copy-3" / "s1"), "at": 0}
    assert "error" in request(host, host.ranks, host.mirrors.endpoint, **put)
    assert not host.path.exists()
