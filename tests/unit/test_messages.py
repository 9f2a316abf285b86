"""Messages between a notebook and an agent: once and in order, whatever happens on the way."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jaxcluster.hosts.agent.messages import (
    HEAD,
    OVERHEAD,
    Session,
)

Packet = list[Any]


class End:
    """A session, the messages that it was given, and those that it has delivered."""

    def __init__(self, asks: bool, limit: int = 1 << 20) -> None:
        self.session = Session(asks, limit)
        self.given: list[bytes] = []
        self.delivered: list[bytes] = []

    def send(self, nbytes: int = 0) -> None:
        self.given.append(b"%d-%s" % (len(self.given), b"x" * nbytes))
        self.session.send([self.given[-1]])

    def feed(self, packet: Packet) -> None:
        found = self.session.feed(packet[0], packet[1:])
        if found is not None:
            assert len(found) == 1
            self.delivered.append(bytes(found[0]))


class Net:
    """Two ends and what is on its way between them. Only ``a`` hears of its connections."""

    def __init__(self, seed: int = 0, limit: int = 1 << 20) -> None:
        self.random = random.Random(seed)
        self.a = End(True, limit)
        self.b = End(False, limit)
        self.up = False
        self.flying: list[tuple[End, Packet]] = []
        self.sent: list[int] = []  # the kinds of all packets
        self.late: list[tuple[End, Packet]] = []  # of connections that are gone

    def collect(self) -> None:
        for end, other in ((self.a, self.b), (self.b, self.a)):
            for packet in end.session.take():
                self.sent.append(HEAD.unpack(packet[0])[1])
                if self.up:
                    self.flying.append((other, packet))

    def open(self) -> None:
        self.up = True
        self.a.session.opened()
        self.collect()

    def cut(self) -> None:
        self.late += self.flying
        self.flying.clear()
        self.up = False
        self.a.session.closed()

    def deliver(self, at: int = 0) -> None:
        end, packet = self.flying.pop(at)
        end.feed(packet)
        self.collect()

    def beat(self) -> None:
        for end in (self.a, self.b):
            end.session.beat()
        self.collect()

    def settle(self) -> None:
        """Let all arrive, on a connection that loses nothing."""
        for _ in range(3):
            while self.flying:
                self.deliver()
            self.beat()
        while self.flying:
            self.deliver()

    def check(self) -> None:
        assert self.b.delivered == self.a.given
        assert self.a.delivered == self.b.given
        for end in (self.a, self.b):
            assert end.session.kept_bytes == 0
            assert end.session.acknowledged == end.session.sent == len(end.given)
            assert not end.session.is_over


def linked(limit: int = 1 << 20) -> Net:
    net = Net(limit=limit)
    net.open()
    net.settle()
    return net


@pytest.mark.parametrize("seed", range(40))
def test_any_pattern_of_cuts_gives_each_message_once_in_order(seed: int) -> None:
    """Also where packets come twice, or late, of a connection that is gone."""
    net = Net(seed)
    draw = net.random
    net.open()
    for _ in range(1500):
        step = draw.random()
        if step < 0.30:
            draw.choice((net.a, net.b)).send(draw.randrange(200))
            net.collect()
        elif step < 0.75 and net.flying:
            if seed % 3 and draw.random() < 0.1:
                net.flying.append(net.flying[0])
            net.deliver()
        elif step < 0.93:
            net.beat()
        elif step < 0.97 and seed % 3 == 2 and net.late:
            end, packet = draw.choice(net.late)
            end.feed(packet)
            net.collect()
        elif net.up:
            net.cut()
        else:
            net.open()
    net.cut()
    net.open()
    net.settle()
    net.check()
    assert len(net.a.given) > 100


def test_it_is_full_at_its_limit_and_no_more_when_the_other_end_has_some() -> None:
    net = linked(limit=10 * (OVERHEAD + 100))
    net.cut()
    while not net.b.session.is_full:
        net.b.send(98)
    assert net.b.session.kept_bytes <= 11 * (OVERHEAD + 102)
    net.open()
    net.settle()
    assert not net.b.session.is_full
    net.check()


def test_a_message_larger_than_the_limit_passes() -> None:
    net = linked(limit=1000)
    net.a.send(100_000)
    net.collect()
    net.cut()
    net.a.send(200_000)
    assert net.a.session.is_full
    net.open()
    net.settle()
    net.check()


@pytest.mark.parametrize("first", ["a", "b"])
def test_bye_ends_it_at_both_ends(first: str) -> None:
    net = linked()
    one, other = (net.a, net.b) if first == "a" else (net.b, net.a)
    one.session.bye()
    net.collect()
    net.deliver()
    assert one.session.is_over and other.session.is_over
    net.sent.clear()
    other.send()
    assert other.session.kept_bytes == 0
    net.collect()
    assert net.flying == [] and net.sent == []
