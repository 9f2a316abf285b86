"""Messages between a notebook and an agent: once and in order, whatever happens on the way."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jaxcluster.agent.messages import (
    ACK,
    BYE,
    DATA,
    HEAD,
    OVERHEAD,
    VERSION,
    WELCOME,
    Session,
    nbytes,
)

Packet = list[Any]


class End:
    """A session, the messages that it was given, and those that it has delivered."""

    def __init__(self, name: bytes, peer: bytes | None = None, limit: int = 1 << 20) -> None:
        self.session = Session(name, peer, limit=limit)
        self.given: list[bytes] = []
        self.delivered: list[bytes] = []

    def send(self, now: float, nbytes: int = 0) -> None:
        self.given.append(b"%d-%s" % (len(self.given), b"x" * nbytes))
        self.session.send([self.given[-1]])

    def feed(self, packet: Packet, now: float) -> None:
        found = self.session.feed(packet[0], packet[1:], now)
        if found is not None:
            assert len(found) == 1
            self.delivered.append(bytes(found[0]))


class Net:
    """Two ends and what is on its way between them. Only ``a`` hears of its connections."""

    def __init__(self, seed: int = 0, limit: int = 1 << 20) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.a = End(b"a" * 8, limit=limit)
        self.b = End(b"b" * 8, b"a" * 8, limit=limit)
        self.up = False
        self.flying: list[tuple[End, Packet]] = []
        self.sent: list[tuple[int, int]] = []  # kind and size of all packets
        self.late: list[tuple[End, Packet]] = []  # of connections that are gone

    def collect(self) -> None:
        for end, other in ((self.a, self.b), (self.b, self.a)):
            for packet in end.session.take():
                self.sent.append((HEAD.unpack(packet[0])[1], nbytes(packet)))
                if self.up:
                    self.flying.append((other, packet))

    def open(self) -> None:
        self.up = True
        self.a.session.opened(self.now)
        self.collect()

    def cut(self) -> None:
        self.late += self.flying
        self.flying.clear()
        self.up = False
        self.a.session.closed()

    def deliver(self, at: int = 0) -> None:
        end, packet = self.flying.pop(at)
        end.feed(packet, self.now)
        self.collect()

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for end in (self.a, self.b):
            end.session.tick(self.now)
        self.collect()

    def settle(self, seconds: float = 120.0) -> None:
        """Let all arrive, on a connection that loses nothing, until nobody has anything to do."""
        end = self.now + seconds
        while True:
            while self.flying:
                self.deliver()
            due = [s.due for s in (self.a.session, self.b.session) if s.due is not None]
            if not due or self.now > end:
                break
            self.tick(max(0.0, min(due) - self.now) + 1e-6)
        assert self.now <= end, "they are not done with each other"

    def check(self) -> None:
        assert self.b.delivered == self.a.given
        assert self.a.delivered == self.b.given
        for end in (self.a, self.b):
            assert end.session.kept_bytes == 0
            assert end.session.acknowledged == end.session.sent == len(end.given)
            assert not end.session.is_replaced


def linked(limit: int = 1 << 20) -> Net:
    net = Net(limit=limit)
    net.open()
    net.settle()
    return net


# --------------------------------------------------------------------------- any pattern


@pytest.mark.parametrize("seed", range(40))
def test_any_pattern_of_cuts_gives_each_message_once_in_order(seed: int) -> None:
    """Also where packets come twice, or late, of a connection that is gone."""
    net = Net(seed)
    draw = net.random
    net.open()
    for _ in range(1500):
        step = draw.random()
        if step < 0.30:
            draw.choice((net.a, net.b)).send(net.now, draw.randrange(200))
            net.collect()
        elif step < 0.75 and net.flying:
            if seed % 3 and draw.random() < 0.1:
                net.flying.append(net.flying[0])
            net.deliver()
        elif step < 0.93:
            net.tick(draw.choice((0.001, 0.05, 0.3, 1.5)))
        elif step < 0.97 and seed % 3 == 2 and net.late:
            end, packet = draw.choice(net.late)
            end.feed(packet, net.now)
            net.collect()
        elif net.up:
            net.cut()
        else:
            net.open()
    net.cut()
    net.tick(5.0)
    net.open()
    net.settle()
    net.check()
    assert len(net.a.given) > 100


def test_a_connection_that_loses_nothing_carries_each_message_once() -> None:
    net = linked()
    net.sent.clear()
    for _ in range(1000):
        net.a.send(net.now)
        net.collect()
        if net.random.random() < 0.5:
            net.tick(0.001)
        while len(net.flying) > 5:
            net.deliver()
    net.settle()
    kinds = [kind for kind, _ in net.sent]
    assert kinds.count(DATA) == 1000
    assert kinds.count(ACK) <= 1000 // 64 + 3
    assert set(kinds) == {DATA, ACK}
    net.check()


def test_a_slow_connection_is_not_taken_for_a_lossy_one() -> None:
    """Questions wait behind what is on its way, and so do their answers."""
    net = linked()
    net.sent.clear()
    for _ in range(50):
        net.a.send(net.now, 1000)
        net.b.send(net.now, 1000)
    net.collect()
    while net.flying:
        net.tick(0.7)  # each packet takes that long
        net.deliver()
    net.settle()
    assert [kind for kind, _ in net.sent].count(DATA) == 100
    net.check()


# --------------------------------------------------------------------------- what it costs


def test_two_ends_that_have_nothing_to_say_are_silent() -> None:
    net = linked()
    net.a.send(net.now)
    net.collect()
    net.settle()
    net.sent.clear()
    assert net.a.session.due is None
    assert net.b.session.due is None
    net.tick(1000)
    assert net.sent == []


# --------------------------------------------------------------------------- what is kept


def test_it_is_full_at_its_limit_and_no_more_when_the_other_end_has_some() -> None:
    net = linked(limit=10 * (OVERHEAD + 100))
    net.cut()
    while not net.b.session.is_full:
        net.b.send(net.now, 98)
    assert net.b.session.kept_bytes <= 11 * (OVERHEAD + 102)
    net.open()
    net.settle()
    assert not net.b.session.is_full
    net.check()


def test_a_message_larger_than_the_limit_passes() -> None:
    net = linked(limit=1000)
    net.a.send(net.now, 100_000)
    net.collect()
    net.cut()
    net.a.send(net.now, 200_000)
    assert net.a.session.is_full
    net.open()
    net.settle()
    net.check()


# --------------------------------------------------------------------------- who it is


def test_a_process_in_the_others_place_is_no_successor() -> None:
    """What was meant for the old one may be a command: it is not given to another one."""
    net = linked()
    net.cut()
    net.a.send(net.now)
    net.b = End(b"c" * 8)  # the agent was started again
    net.open()
    net.settle()
    assert net.a.session.is_replaced
    assert net.b.delivered == []
    assert net.a.session.kept_bytes == 0
    net.a.send(net.now)
    net.collect()
    assert net.flying == []
    assert net.a.session.due is None


def test_a_new_end_takes_nothing_that_was_meant_for_another() -> None:
    new = Session(b"c" * 8)
    for kind in (DATA, ACK, WELCOME, BYE):
        head = HEAD.pack(VERSION, kind, b"a" * 8, b"b" * 8, 1, 0)
        assert new.feed(head, [b"stop"], 0.0) is None
    assert not new.is_open
    assert new.received == 0
    assert not new.is_over


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"hello",
        bytes(HEAD.size),
        HEAD.pack(VERSION + 1, DATA, b"a" * 8, b"b" * 8, 1, 0),
        HEAD.pack(VERSION, 200, b"a" * 8, b"b" * 8, 1, 0),
        HEAD.pack(VERSION, ACK, b"a" * 8, b"b" * 8, 0, 2**64 - 1),
        HEAD.pack(VERSION, WELCOME, b"a" * 8, b"b" * 8, 77, 2**63),
        HEAD.pack(VERSION, DATA, b"a" * 8, b"b" * 8, 2**64 - 1, 0),
    ],
    ids=["empty", "short", "zeros", "version", "kind", "has too much", "unasked", "far ahead"],
)
def test_nonsense_changes_nothing(head: bytes) -> None:
    net = linked()
    assert net.b.session.feed(head, [b"x"], net.now) is None
    net.collect()
    net.b.send(net.now)
    net.a.send(net.now)
    net.collect()
    net.settle()
    net.check()


def test_bye_ends_it_at_both_ends() -> None:
    net = linked()
    net.a.session.bye()
    net.collect()
    net.deliver()
    assert net.a.session.is_over
    assert net.b.session.is_over
    net.b.send(net.now)
    net.collect()
    assert net.flying == []
    assert net.b.session.kept_bytes == 0
