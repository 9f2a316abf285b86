"""The notebook's end of the ranks' sockets, with a made-up rank at the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq

from jaxcluster import wire
from jaxcluster.agent.client import Agents, RankSocket
from jaxcluster.agent.transport import new_keys
from jaxcluster.agreement.cellqueue import CellSpec
from jaxcluster.errors import (
    JaxClusterError,
    NotSerialisable,
    RankDied,
    RankError,
    TransferError,
    VersionMismatch,
)
from jaxcluster.wire.link import Event, Link, Sink, unwrap
from jaxcluster.wire.ops import Operation

Answer = tuple[str, Any, Sequence[bytes]]


class Say(Operation[Any], op="say"):
    """What a ``FakeRank``'s script answers."""

    what: str
    body: Any = None


ANSWER_S = 20.0


class FakeRank:
    """A rank's socket: answers each request with what ``script`` makes of it, and keeps them."""

    def __init__(self, address: str, script: Callable[[str, Any], list[Answer]]) -> None:
        self.address = address
        self.script = script
        self.received: list[tuple[str, Any, list[bytes]]] = []
        self._stop = threading.Event()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._bound.wait(ANSWER_S)

    def _serve(self) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
            socket.linger = 0
            socket.bind(self.address)
            self._bound.set()
            while not self._stop.is_set():
                if not socket.poll(10):
                    continue
                ident, data, *buffers = socket.recv_multipart()
                envelope = wire.decode(data)
                said = envelope["body"]["what"], envelope["body"]["body"]
                self.received.append((*said, buffers))
                for op, body, frames in self.script(*said):
                    made = body if op == "raw" else wire.encode(op, envelope["id"], body)
                    socket.send_multipart([ident, made, *frames])

    def close(self) -> None:
        self._stop.set()
        self._thread.join(ANSWER_S)


def printed(text: int) -> wire.RankOutput:
    return wire.RankOutput(0, 1, "stream", {"name": "stdout", "text": str(text)})


def echo(op: str, body: Any) -> list[Answer]:
    match op:
        case "silence":
            return []
        case "chatter":
            return [("output", printed(k), []) for k in range(100)] + [("reply", "end", [])]
        case "frames":
            return [("reply", None, [b"first", b"\x00" * 200_000])]
        case "refuse":
            return [("error", wire.Failure(body, "no", "type this"), [])]
        case "refuse oddly":
            return [("error", {"message": "no"}, [])]
        case "other version":
            return [("raw", b'{"v": 99, "op": "reply", "id": "x"}', [])]
        case "noise":
            return [("raw", noise, []) for noise in (b"", b"\xff\xfe", b"[]", b"{}", b"17")]
    return [("reply", [op, body], [])]


@pytest.fixture
def make_rank(tmp_path: Path) -> Iterator[Callable[..., FakeRank]]:
    made = []

    def make(address: str = "", script: Callable[[str, Any], list[Answer]] = echo) -> FakeRank:
        made.append(FakeRank(address or f"inproc-{len(made)}", script))
        return made[-1]

    yield make
    for rank in made:
        rank.close()


@pytest.fixture
def addresses(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("s")
    return [f"ipc://{folder}/{rank}" for rank in range(3)]


@pytest.fixture
def agents() -> Iterator[Agents]:
    made = Agents(new_keys())
    yield made
    made.close()


@pytest.fixture
def link(agents: Agents, addresses: list[str], make_rank: Callable[..., FakeRank]) -> Link:
    """A link to three ranks that echo."""
    for address in addresses:
        make_rank(address)
    return linked(agents, addresses)


def linked(agents: Agents, addresses: list[str]) -> Link:
    return Link(range(len(addresses)), lambda r, on: RankSocket(agents, addresses[r], on))


def next_event(sink: Sink) -> Event[Any]:
    return sink.get(timeout=ANSWER_S)


# --------------------------------------------------------------------------- asking


def test_an_answer_arrives_with_the_rank_and_the_request_it_belongs_to(link: Link) -> None:
    sink = Sink()
    ids = [link.request(rank, Say("op", {"n": rank}), sink=sink) for rank in (0, 1, 2)]
    assert len(set(ids)) == 3
    events = sorted((next_event(sink) for _ in ids), key=lambda event: event.rank)
    assert [(e.rank, e.op, e.id, e.body) for e in events] == [
        (rank, "reply", ids[rank], ["op", {"n": rank}]) for rank in range(3)
    ]


def test_what_comes_before_the_reply_comes_in_order(link: Link) -> None:
    sink = Sink()
    link.request(1, Say("chatter"), sink=sink)
    events = [next_event(sink) for _ in range(101)]
    assert [e.body for e in events] == [*map(printed, range(100)), "end"]
    assert {e.op for e in events[:-1]} == {"output"}


@pytest.mark.parametrize("buffers", [[], [b"sent by the thread"]], ids=["small", "large"])
def test_whoever_asks_loses_no_answer_that_comes_just_then(
    link: Link, buffers: list[bytes]
) -> None:
    """What is sent on a socket takes the news of what has come from the file that is waited for."""
    missed: list[int] = []

    def ask() -> None:
        for k in range(300):
            if not missed:
                found = link.gather(range(3), Say("op", k), buffers=buffers, timeout_s=ANSWER_S)
                missed.extend({0, 1, 2} - found.keys())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missed == []


def test_raw_buffers_travel_beside_the_envelope_both_ways(
    agents: Agents, addresses: list[str], make_rank: Callable[..., FakeRank]
) -> None:
    rank = make_rank(addresses[0])
    link = linked(agents, addresses[:1])
    found = link.gather([0], Say("frames"), buffers=[b"sent", b"y" * 100_000], timeout_s=ANSWER_S)
    assert [bytes(b) for b in found[0].buffers] == [b"first", b"\x00" * 200_000]
    assert rank.received[0][2] == [b"sent", b"y" * 100_000]


def test_ranks_that_do_not_answer_in_time_are_left_out(link: Link) -> None:
    assert link.gather([0, 1], Say("silence"), timeout_s=0.05) == {}
    assert link._waiting == {}


def test_whoever_waits_may_end_that_meanwhile_or_by_an_answer(link: Link) -> None:
    looks: list[None] = []

    def check() -> None:
        looks.append(None)
        if len(looks) > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        link.gather([0, 1], Say("silence"), timeout_s=ANSWER_S, check=check)
    heard: list[int] = []
    found = link.gather(
        [0, 1], Say("chatter"), timeout_s=ANSWER_S, on_answer=lambda event: heard.append(event.rank)
    )
    assert sorted(heard) == sorted(found) == [0, 1]
    with pytest.raises(ZeroDivisionError):
        link.gather([0, 1], Say("op"), timeout_s=ANSWER_S, on_answer=lambda event: 1 // 0)
    assert link._waiting == {}


# --------------------------------------------------------------------------- life and death


def test_a_rank_that_listens_later_gets_what_was_sent_before(
    agents: Agents, addresses: list[str], make_rank: Callable[..., FakeRank]
) -> None:
    link = linked(agents, addresses[:1])
    sink = Sink()
    link.request(0, Say("op", "early"), sink=sink)
    make_rank(addresses[0])
    assert next_event(sink).body == ["op", "early"]


def test_the_death_of_a_rank_answers_all_that_waits_for_it(link: Link) -> None:
    sink = Sink()
    waiting = link.request(1, Say("silence"), sink=sink)
    link.mark_dead(1, wire.Death("killed by SIGKILL"))
    event = next_event(sink)
    assert (event.rank, event.op, event.id) == (1, "died", waiting)
    later = link.request(1, Say("op"), sink=sink)
    answer = next_event(sink)  # the made-up rank would answer, but nobody asks it any more
    assert (answer.id, answer.op, answer.body) == (later, "died", wire.Death("killed by SIGKILL"))
    assert link.gather([1], Say("op"), timeout_s=ANSWER_S)[1].op == "died"
    assert link.gather([0, 1], Say("op"), timeout_s=ANSWER_S)[0].op == "reply"


def test_a_rank_of_another_version_is_not_talked_to(link: Link) -> None:
    found = link.gather([1, 2], {1: Say("op", "a"), 2: Say("op", "b")}, timeout_s=ANSWER_S)
    assert [event.op for event in found.values()] == ["reply", "reply"]
    for asked in ("other version", "op"):  # it is remembered, and is not a death
        event = link.gather([2], Say(asked), timeout_s=ANSWER_S)[2]
        assert event.op == "mismatch"
        assert isinstance(event.body, wire.Failure)
        with pytest.raises(VersionMismatch, match="install the same jaxcluster version") as caught:
            unwrap(event)
        assert str(caught.value).startswith(
            "A message of rank 2 can't be read: it has jaxcluster protocol 99"
        )
        assert "%jaxcluster start" in caught.value.hint
    assert link.gather([1], Say("op"), timeout_s=ANSWER_S)[1].op == "reply"


def test_what_is_no_message_at_all_answers_nothing_and_ends_nothing(link: Link) -> None:
    assert link.gather([0], Say("noise"), timeout_s=0.05) == {}
    assert link.gather([0], Say("op", 1), timeout_s=ANSWER_S)[0].body == ["op", 1]


def test_closing_does_not_wait_for_a_rank_that_is_not_there(addresses: list[str]) -> None:
    agents = Agents(new_keys())
    link = linked(agents, addresses)
    link.request(0, Say("op"), sink=Sink())
    link.close()
    agents.close()  # it gives its thread 2 s to end, and the test 120
    assert not agents._thread.is_alive()
    agents.close()
    assert link.gather([0], Say("state"), timeout_s=0.05) == {}


# --------------------------------------------------------------------------- what ranks refuse


@pytest.mark.parametrize(
    ("ename", "error", "said"),
    [
        ("BadName", TransferError, "no\ntype this"),
        ("NotReady", TransferError, "no\ntype this"),
        ("CannotPickle", NotSerialisable, "no\ntype this"),
        ("OSError", RankError, "Rank 2: OSError: no\ntype this"),
    ],
)
def test_a_refusal_is_raised_as_what_it_is(
    link: Link, ename: str, error: type[JaxClusterError], said: str
) -> None:
    with pytest.raises(error) as caught:
        unwrap(link.gather([2], Say("refuse", ename), timeout_s=ANSWER_S)[2])
    assert str(caught.value) == said


def test_the_dead_are_named_with_the_reason_unless_they_may_live() -> None:
    with pytest.raises(RankDied) as caught:
        unwrap(Event(3, "died", "id", wire.Death("killed by SIGKILL")))
    assert str(caught.value).startswith("Rank 3 has died (killed by SIGKILL).\n")
    assert "%jaxcluster logs 3" in caught.value.hint and caught.value.ranks == (3,)
    why = "host h2 can't be reached from here: no way"
    with pytest.raises(RankDied) as caught:
        unwrap(Event(1, "died", "1", wire.Death(why, may_live=True)))
    assert str(caught.value).startswith(f"Rank 1 can't be reached: {why}.\n")


class Tell(Operation[wire.Death], op="tell"):
    """``echo`` replies to all alike."""

    what: str = "op"
    body: Any = None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Tell(), "the reply to 'tell'.* got `array`"),
        (Say("refuse oddly"), "'error': Object missing.* `ename`"),
        (Say("refuse", "WrongFields"), "Rank 1 can't read no"),
    ],
)
def test_other_fields_are_a_mismatch(link: Link, asked: Operation[Any], said: str) -> None:
    with pytest.raises(VersionMismatch, match=said) as caught:
        unwrap(link.gather([1], asked, timeout_s=ANSWER_S)[1])
    assert "same jaxcluster" in caught.value.hint


# --------------------------------------------------------------------------- what is sent


class Written:
    """A channel that keeps what it is to send."""

    def __init__(self, rank: int, on_message: object) -> None:
        self.sent: list[Any] = []

    def send(self, frames: Sequence[Any]) -> None:
        self.sent.append(wire.decode(frames[0]))

    def close(self) -> None: ...


def test_one_body_for_all_ranks_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []
    encode = wire.encode_body
    monkeypatch.setattr(wire, "encode_body", lambda body: encoded.append(body) or encode(body))
    link = Link(range(4), Written)
    body = wire.CellRequest(CellSpec(7, (0, 1, 2)), "half a pair: \ud83d", 7, [0])
    ids = link.request_each(dict.fromkeys(range(3), body), sink=Sink())
    assert len(encoded) == 1
    sent = [one.sent[-1] for one in link._channels.values() if one.sent]  # type: ignore[attr-defined]
    assert [one["id"] for one in sent] == ids
    assert all(one["body"]["source"] == "half a pair: \\ud83d" for one in sent)
