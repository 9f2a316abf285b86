"""The referee's process: frames come in, answers go out, and no rank ends it."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pytest
from helpers import until
from refereepeers import Peer, serving

from jaxcluster.agreement import messages
from jaxcluster.agreement.messages import BASE, BUFFER, LONG, CellSpec, End, pack, unpack
from jaxcluster.agreement.referee import SILENT_S, TICK_S
from jaxcluster.agreement.server import Hub, Relay, Server, Stream
from jaxcluster.model.words import explain

KEY = "a key"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Made:
    """A server of so many ranks, each with its two first connections, that answers at once."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        self.clock = Clock()
        self.path = folder / "referee.sock"
        self.server = Server(num_ranks, str(self.path), KEY, self.clock)
        self.base, self.main = list[Peer](), list[Peer]()
        for rank in range(num_ranks):
            self.base.append(Peer(self.path, rank, BASE))
            self.main.append(Peer(self.path, rank))
            self.step()

    def step(self) -> None:
        """All that has been said is heard."""
        while self.server.step(0):
            pass

    def begin(self, seq: int, *ranks: int, is_foreground: bool = False) -> None:
        for rank in ranks:
            self.base[rank].tell("arrive", CellSpec(seq, ranks, is_foreground=is_foreground))
        self.step()
        for rank in ranks:
            assert self.base[rank].is_told() == ("run", seq)

    def agree(self, *peers: Peer) -> None:
        """Have these threads of the first ranks agree on a launch."""
        for peer in peers:
            peer.launch(*range(len(peers)))
        self.step()
        assert {peer.hears()[:1] for peer in peers} == {b"g"}

    def close(self) -> None:
        for peer in (*self.base, *self.main):
            peer.socket.close()
        self.step()
        self.server.close()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    made = Made(tmp_path, 3)
    yield made
    made.close()


def test_a_rank_with_several_threads_is_told_in_which_order_they_launch(made: Made) -> None:
    made.begin(5, 0, 1, 2)
    thread = Peer(made.path, 0, "loader load 1", 5)
    made.step()
    for count in (1, 2):
        for rank in (0, 1):
            made.main[rank].launch(0, 1)
        made.step()
        assert made.main[0].hears() == b"g%d" % count
        assert made.main[1].hears() == b"g0"
    thread.socket.close()
    made.step()
    for rank in (0, 1):
        made.main[rank].launch(0, 1)
    made.step()
    assert made.main[0].hears() == b"g0"


def test_a_cell_that_a_rank_ends_is_closed_and_over(made: Made) -> None:
    made.begin(5, 0, 1, 2)
    made.main[2].tell("end", End("ok"))
    for rank in (0, 1):
        made.main[rank].launch(0, 1, 2)
    made.step()
    refusal = made.main[0].is_refused()
    assert (refusal.kind, refusal.causes) == ("ended", (2,))
    assert refusal.doing[0].place.line == 3
    assert made.main[1].is_refused() == refusal
    assert made.base[0].is_told() == ("closed", 5, refusal, True)
    assert made.base[1].is_told() == ("closed", 5, refusal, False)
    for rank in (0, 1):
        made.main[rank].tell("end", End("error"))
    made.step()
    assert made.base[0].is_told() == ("over", 5, refusal, True)


def test_a_barrier_that_is_left_closes_nothing(made: Made) -> None:
    made.begin(5, 0, 1)
    made.main[0].launch(0, 1, fingerprint=8, meets_all=True)
    made.main[0].tell("withdraw")
    for rank in (0, 1):
        made.main[rank].launch(0, 1)
    made.step()
    assert made.main[0].is_refused().kind == "left"
    assert [made.main[rank].hears() for rank in (0, 1)] == [b"g0", b"g0"]


@pytest.mark.parametrize("announces", [True, False])
def test_others_have_a_moment_to_announce_theirs(made: Made, announces: bool) -> None:
    """The minority is known then."""
    made.begin(5, 0, 1, 2)
    made.main[0].launch(0, 1, 2)
    made.main[1].launch(0, 1, 2, fingerprint=8)
    made.step()
    assert made.server.referee.is_certain
    if announces:
        made.main[2].launch(0, 1, 2)
    made.server.step(0)
    made.clock.now += TICK_S
    made.server.step(0)
    assert made.main[0].is_refused().causes == ((1,) if announces else (0, 1))


def test_a_death_shows_by_the_end_of_the_control_threads_connection(made: Made) -> None:
    made.begin(5, 0, 1, 2)
    made.main[0].launch(0, 1, 2)
    made.step()
    made.main[2].socket.close()
    made.step()
    assert made.server.referee.look(
        0.0
    ).waits  # this one may be the end of a child that it has forked
    made.base[2].socket.close()
    made.step()
    assert made.main[0].is_refused().kind == "died"


def test_a_rank_that_has_gone_before_its_answer_ends_nobody(made: Made) -> None:
    made.base[1].tell("tick")  # what no rank says is not heard
    made.base[1].tell("look", 1, 10)
    made.base[1].socket.close()
    made.main[1].launch(1)
    made.main[1].socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.main[1].socket.close()
    made.step()
    made.begin(5, 0, 2)
    assert made.server.referee.look(0.0).connected == [0, 2]


def test_who_looks_is_told_who_waits_and_what_was_agreed(made: Made) -> None:
    made.begin(5, 0, 1, 2)
    made.main[0].launch(0, 1)
    made.step()
    made.clock.now += 2
    made.main[1].launch(0, 1)
    made.step()
    made.main[2].launch(0, 1, 2, fingerprint=9)
    made.step()
    made.base[0].tell("look", 77, 10)
    made.step()
    word, number, looked = made.base[0].is_told()
    assert (word, number) == ("looked", 77)
    (wait,) = looked.waits
    assert (wait.rank, wait.missing, wait.since, wait.seq) == (2, [0, 1], 102.0, 5)
    (agreed,) = looked.agreed
    assert (agreed.number, agreed.last, agreed.late_s) == (1, 1, 2.0)
    assert (looked.now, looked.connected) == (102.0, [0, 1, 2])
    made.base[0].tell("look", 78, 0)
    made.step()
    assert made.base[0].is_told()[2].agreed == []


@pytest.mark.parametrize("does", ["nothing", "another launch", "its end"])
def test_who_is_silent_after_xla_refused_a_launch_elsewhere_is_in_it(made: Made, does: str) -> None:
    made.begin(5, 0, 1)
    made.agree(*made.main[:2])
    made.main[0].tell("unmade", (0, 1))
    made.step()
    if does == "another launch":
        made.main[1].launch(1, 2)
    elif does == "its end":
        made.main[1].tell("end", End("ok"))
    made.step()
    made.clock.now += SILENT_S - 1
    made.step()
    assert made.server.referee.patience_s == SILENT_S
    made.clock.now += 2
    made.step()
    made.base[0].tell("look", 77, 0)
    made.step()
    word, number, *told = made.base[0].is_told()
    if does != "nothing":
        assert word == "looked"
        return
    assert (word, number, told[0].kind, told[0].causes) == ("closed", 5, "torn", (0,))


@pytest.mark.parametrize("closes", [True, False])
def test_a_threads_torn_launch_tears_a_cell_that_is_closed_or_whose_main_thread_waits(
    made: Made, closes: bool
) -> None:
    made.begin(5, 0, 1)
    loaders = [Peer(made.path, rank, "loader load 1", 5) for rank in (0, 1)]
    made.agree(*loaders)
    loaders[0].tell("unmade", (0, 1))
    if closes:
        made.main[0].tell("end", End("error"))
    else:
        made.main[1].launch(1, 2)
    made.step()
    made.clock.now += SILENT_S + 1
    made.step()
    for rank in (1,) if closes else (0, 1):
        made.main[rank].tell("end", End("error"))
    made.step()
    kinds = [made.base[0].is_told()[2].kind for _ in "12"]
    assert kinds == ["failed" if closes else "torn", "torn"]
    for loader in loaders:
        loader.close()


def test_a_cell_that_has_not_come_everywhere_holds_back_its_own_notebooks_cells_alone(
    made: Made,
) -> None:
    made.base[0].tell("arrive", CellSpec(5, (0, 1), "n1"))
    made.base[0].tell("arrive", CellSpec(6, (0,), "n1"))
    made.base[0].tell("arrive", CellSpec(7, (0,), "n2"))
    made.step()
    made.main[0].tell("end", End("ok"))
    made.step()
    assert made.base[0].is_told() == ("run", 7)
    assert made.base[0].is_told() == ("over", 7, None, True)
    made.base[1].tell("arrive", CellSpec(5, (0, 1), "n1"))
    made.step()
    assert made.base[0].is_told() == ("run", 5)


def test_what_is_queued_after_a_cell_that_failed_is_skipped_unless_it_has_to_run(
    made: Made,
) -> None:
    made.begin(5, 0)
    for seq, is_skippable in (6, True), (7, False):
        made.base[0].tell("arrive", CellSpec(seq, (0,), is_skippable=is_skippable))
    made.main[0].tell("end", End("error"))
    made.step()
    words = [made.base[0].is_told()[:2] for _ in range(4)]
    assert words == [("closed", 5), ("over", 5), ("skip", 6), ("run", 7)]


@pytest.mark.parametrize("refused", [[0], [0, 1]])
def test_a_thread_does_not_go_on_after_a_launch_that_xla_refused_elsewhere(
    made: Made, refused: list[int]
) -> None:
    made.begin(5, 0, 1)
    loaders = [Peer(made.path, rank, "loader load 1", 5) for rank in (0, 1)]
    made.agree(*loaders)
    for rank in refused:
        loaders[rank].tell("unmade", (0, 1))
    for rank, loader in enumerate(loaders):
        loader.launch(0, 1, folded=1 if rank in refused else 0)
        made.step()
    made.clock.now += SILENT_S + 1
    made.step()
    if refused == [0, 1]:
        assert [loader.hears() for loader in loaders] == [b"g2"] * 2
    for rank in (0, 1) if refused == [0] else ():
        assert loaders[rank].is_refused().kind == "torn"
        made.main[rank].tell("end", End("ok"))
        made.step()
        assert made.base[rank].is_told()[0] == "closed"
    if refused == [0]:
        over = made.base[0].is_told()[2]
        assert (over.kind, over.causes) == ("torn", (0,))
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize(
    ("ends", "kind"),
    [
        ([("failed in XLA", ""), ("ok", "at work")], "torn"),
        ([("error", ""), ("error", "stuck")], "torn"),
        ([("failed in XLA", ""), ("ok", "")], "failed"),
        ([("error", ""), ("ok", "at work")], "failed"),
        ([("error", "stuck"), ("error", "stuck")], "failed"),  # a step that takes long
    ],
)
def test_ranks_of_which_xla_has_left_some_behind_are_torn(
    made: Made, ends: list[tuple[str, str]], kind: str
) -> None:
    made.begin(5, 0, 1)
    for rank, (outcome, at_work) in enumerate(ends):
        made.main[rank].tell("end", End(outcome, at_work=at_work))
    made.step()
    assert made.base[0].is_told()[0] == "closed"
    word, _, refusal, _ = made.base[0].is_told()
    assert (word, refusal.kind) == ("over", kind)


def test_a_suspended_rank_hears_hundreds_of_answers_later_and_in_order(made: Made) -> None:
    for seq in range(100, 3100):
        made.base[0].tell("stop", seq)
        made.base[0].tell("arrive", CellSpec(seq, (0,)))
        made.step()
    heard = []
    for _ in range(3000):
        heard.append(made.base[0].is_told()[1])
        made.step()
    assert heard == [*range(100, 3100)]
    for seq in range(4000, 7000):  # and it may end meanwhile
        made.base[0].tell("stop", seq)
        made.base[0].tell("arrive", CellSpec(seq, (0,)))
        made.step()


# --------------------------------------------------------------------------- long frames


@pytest.mark.parametrize("size", [0, 1, LONG, 100 * LONG])
def test_a_long_frame_is_compressed(size: int) -> None:
    frame = pack("closed", "x" * size)
    assert len(frame) < BUFFER
    assert unpack(frame) == ("closed", "x" * size)


def test_a_frame_makes_records_and_nothing_else() -> None:
    with pytest.raises(KeyError, match="system"):
        unpack(pack("stop", os.system))


def test_hundreds_of_ranks_that_each_do_something_else_are_all_told(tmp_path: Path) -> None:
    made = Made(tmp_path, 300)
    try:
        everybody = range(300)
        made.begin(5, *everybody)
        for rank, peer in enumerate(made.main):
            peer.launch(*everybody, fingerprint=rank, signature="float32[8], " * 100)
            made.step()
        for peer in made.main[:200:50]:  # while the others read nothing
            refusal = peer.is_refused()
            assert sorted(r for one in refusal.doing for r in one.ranks) == [*everybody]
            assert "each something else" in explain(refusal)
    finally:
        made.close()


# --------------------------------------------------------------------------- other hosts


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    server = Server(2, str(tmp_path / "referee.sock"), KEY)
    server.listen("127.0.0.1")
    with serving(server):
        yield server


def test_ranks_of_another_host_reach_the_referee_through_a_relay(
    served: Server, tmp_path: Path
) -> None:
    path = tmp_path / "relay.sock"
    relay = Relay(str(path), ("127.0.0.1", served.port), KEY)
    here, there = Peer(tmp_path / "referee.sock", 0), Peer(path, 1)
    bases = Peer(tmp_path / "referee.sock", 0, BASE), Peer(path, 1, BASE)
    for base in bases:
        base.tell("arrive", CellSpec(5, (0, 1)))
    assert [base.is_told() for base in bases] == [("run", 5)] * 2
    for peer in (there, here):
        peer.launch(0, 1)
    assert [peer.hears() for peer in (here, there)] == [b"g0", b"g0"]
    here.launch(0, 1)
    bases[1].socket.close()  # its process has ended
    assert here.is_refused().kind == "died"
    for peer in (here, there, bases[0]):
        peer.socket.close()
    until(lambda: not relay.stream.takes, "a relay of a plain job ends then")


def test_messages_of_a_relay_in_a_row_come_whole_and_wait_for_no_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, accepted = Listener(("127.0.0.1", 0), "AF_INET", 1), list[Any]()
    accepting = threading.Thread(target=lambda: accepted.append(listener.accept()))
    accepting.start()
    connection = Client(listener.address)
    accepting.join()
    told = list[bytes]()
    here, there = (Hub(str(tmp_path / name)) for name in ("here", "there"))
    referee = Stream(here, accepted[0], lambda send: told.append)
    relay = Stream(there, connection, lambda send: told.append)
    launch, go = relay.to(0), referee.to(0)

    def hear(hub: Hub, frames: list[bytes]) -> None:
        while told != frames:
            assert hub.step(20)
        told.clear()

    began = time.monotonic()
    for _ in range(20):
        for _ in range(2):
            launch(b"a launch")
            relay.flush()
            hear(here, [b"a launch"])
        go(b"go")
        referee.flush()
        hear(there, [b"go"])
    assert time.monotonic() - began < 0.4  # each round would take 40 ms
    for buffer in BUFFER, 7:  # bytes that are read at once
        monkeypatch.setattr(messages, "BUFFER", buffer)
        for _ in range(2):
            launch(b"a launch")
            relay.flush()
        hear(here, [b"a launch"] * 2)
    for one in (here, there, listener):
        one.close()


def test_the_end_of_a_relay_is_the_end_of_its_ranks(served: Server, tmp_path: Path) -> None:
    relay = Relay(str(tmp_path / "relay.sock"), ("127.0.0.1", served.port), KEY)
    base = Peer(tmp_path / "relay.sock", 1, BASE)
    until(lambda: served.referee.look(0.0).connected, "it is known")
    relay.stream.socket.shutdown(socket.SHUT_RDWR)
    until(lambda: served.referee.dead == {1}, "it counts as dead")
    base.socket.close()


def test_who_has_not_the_key_is_not_heard_and_keeps_nobody_waiting(
    served: Server, tmp_path: Path
) -> None:
    with pytest.raises(AuthenticationError):
        Relay(str(tmp_path / "relay.sock"), ("127.0.0.1", served.port), "another")
    silent = socket.create_connection(("127.0.0.1", served.port))
    peer = Peer(tmp_path / "referee.sock", 0, BASE)
    peer.tell("look", 3, 0)
    assert peer.is_told()[1] == 3
    silent.close()
    peer.socket.close()
