"""The notebook's end of the ranks' sockets, with a made-up rank at the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import until

from jaxcluster import wire
from jaxcluster.errors import (
    JaxClusterError,
    NotSerialisable,
    RankDied,
    RankError,
    TransferError,
    VersionMismatch,
)
from jaxcluster.hosts.agent.client import Agents, RankSocket
from jaxcluster.hosts.agent.transport import new_keys
from jaxcluster.rank.control import ControlChannel, Request
from jaxcluster.wire.link import Event, Link, Sink, unwrap
from jaxcluster.wire.ops import Operation


class Say(Operation[Any], op="say"):
    """What a made-up rank answers."""

    what: str
    body: Any = None


class Tell(Operation[wire.Death], op="tell"):
    """It is answered in the same way."""

    what: str = "op"
    body: Any = None


ANSWER_S = 20.0


class Rank(ControlChannel):
    """A rank's socket: it echoes each request but for a few, and keeps them."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.received: list[Any] = []
        self.handle(Say, "later", self._echo)
        self.handle(Tell, "later", self._echo)
        self.start()

    def _echo(self, request: Request[Any]) -> None:
        self.received.append(said := request.body)
        if said.what == "refuse":
            request.fail(type(said.body, (Exception,), {"hint": "type this"})("no"))
        elif said.what == "refuse oddly":
            request.send("error", {"message": "no"})
        elif said.what != "silence":
            request.reply([said.what, said.body])


@pytest.fixture
def make_rank() -> Iterator[Callable[[str], Rank]]:
    made = []

    def make(address: str) -> Rank:
        made.append(Rank(address))
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
def link(agents: Agents, addresses: list[str], make_rank: Callable[[str], Rank]) -> Link:
    """A link to three ranks that echo."""
    for address in addresses:
        make_rank(address)
    return linked(agents, addresses)


def linked(agents: Agents, addresses: list[str]) -> Link:
    return Link(range(len(addresses)), lambda r, on: RankSocket(agents, addresses[r], on))


def ask(link: Link, rank: int, request: Operation[Any], **more: Any) -> str:
    return link.request_each({rank: request}, **more)[0]


def next_event(sink: Sink) -> Event[Any]:
    return sink.get(timeout=ANSWER_S)


# --------------------------------------------------------------------------- asking


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


def test_who_asks_sends_at_once_but_nothing_before_what_the_thread_has_to_send(
    agents: Agents, addresses: list[str], make_rank: Callable[[str], Rank]
) -> None:
    rank, busy = make_rank(addresses[0]), threading.Event()
    link, sink = linked(agents, addresses[:1]), Sink()
    link.gather([0], Say("first"), timeout_s=ANSWER_S)
    agents._do(busy.wait, ANSWER_S)
    ask(link, 0, Say("alone"), sink=sink)
    until(lambda: len(rank.received) == 2, "it has come while the thread is busy")
    ask(link, 0, Say("with a buffer"), buffers=[b"x"], sink=sink)
    ask(link, 0, Say("behind it"), sink=sink)
    busy.set()
    assert [next_event(sink).body[0] for _ in range(3)] == ["alone", "with a buffer", "behind it"]


@pytest.mark.parametrize("buffers", [[], [b"x"]])
def test_the_thread_sends_what_a_stop_button_has_kept_from_being_sent(
    agents: Agents,
    addresses: list[str],
    make_rank: Callable[[str], Rank],
    monkeypatch: pytest.MonkeyPatch,
    buffers: list[bytes],
) -> None:
    make_rank(addresses[0])
    link, sink = linked(agents, addresses[:1]), Sink()
    link.gather([0], Say("first"), timeout_s=ANSWER_S)

    def press(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    if buffers:
        monkeypatch.setattr(agents._loop, "_write_to_self", press)
    else:
        monkeypatch.setattr(link._channels[0], "_send_part", press)
    with pytest.raises(KeyboardInterrupt):
        ask(link, 0, Say("op", 7), buffers=buffers, sink=sink)
    assert sink.get(timeout=2).body == ["op", 7]


def test_a_forked_process_touches_no_socket(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    channel: Any = link._channels[0]
    monkeypatch.setattr(channel, "_pid", os.getpid() - 1)
    monkeypatch.setattr(channel, "_send_part", None)
    assert link.gather([0], Say("op", 1), timeout_s=ANSWER_S)[0].body == ["op", 1]  # the thread's


def test_ranks_that_do_not_answer_in_time_are_left_out(link: Link) -> None:
    assert link.gather([0, 1], Say("silence"), timeout_s=0.05) == {}
    assert link._waiting == {}


def test_answers_that_have_come_count_before_a_check_ends_the_wait(link: Link) -> None:
    calls = list[int]()

    def check() -> None:
        assert not calls, "it would end the wait"
        calls.append(len(link._waiting))
        until(lambda: not link._waiting, "both have answered")

    found = link.gather([0, 1], Say("op", 1), timeout_s=ANSWER_S, check=check)
    assert (sorted(found), calls) == ([0, 1], [2])


# --------------------------------------------------------------------------- life and death


def test_the_death_of_a_rank_answers_all_that_waits_for_it(link: Link) -> None:
    sink = Sink()
    waiting = ask(link, 1, Say("silence"), sink=sink)
    link.mark_dead(1, wire.Death("killed by SIGKILL"))
    event = next_event(sink)
    assert (event.rank, event.op, event.id) == (1, "died", waiting)
    later = ask(link, 1, Say("op"), sink=sink)
    answer = next_event(sink)  # the made-up rank would answer, but nobody asks it any more
    assert (answer.id, answer.op, answer.body) == (later, "died", wire.Death("killed by SIGKILL"))
    assert link.gather([1], Say("op"), timeout_s=ANSWER_S)[1].op == "died"
    assert link.gather([0, 1], Say("op"), timeout_s=ANSWER_S)[0].op == "reply"


# --------------------------------------------------------------------------- what ranks refuse


@pytest.mark.parametrize(
    ("ename", "error", "said"),
    [
        ("Unavailable", TransferError, "Rank 2: no\ntype this"),
        ("CannotPickle", NotSerialisable, "Rank 2: no\ntype this"),
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
