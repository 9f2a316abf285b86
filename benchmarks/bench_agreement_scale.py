"""Simulate the cost of agreement with up to 1,024 processes on 256 hosts.

Its parts are measured on this machine, with the product's own referee, relays and frames over real
sockets: what a launch costs the referee's process by host, a relay's by rank, and a rank. Then
launches are simulated. Each host's ranks announce, its relay sends one message, the network delays
it, and the referee takes one message after the other. Its answers go the same way back. Ranks are
ready at once, as in a program whose host runs ahead of its devices.

A step of the devices that takes longer than a launch's added time hides it. It also has to be
longer than what the referee needs for a launch: that is its share of one core.
"""

from __future__ import annotations

import argparse
import select
import socket
import statistics
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Client

from harness import ratio, table

from jaxcluster.agreement.messages import LAUNCH, MAIN, Place, Program, pack
from jaxcluster.agreement.server import Hub, Relay, Server, Stream

KEY = "key"
LAUNCHES = 100  # of each figure
FINGERPRINT = 1


@dataclass(frozen=True)
class Parts:
    """Seconds of one launch, of a processor.

    Attributes:
      rank: to announce, and to take the answer.
      relay: of a host's relay, for each of its ranks.
      host: of the referee, for each host's message with its ranks.
    """

    rank: float
    relay: float
    host: float


def hello(rank: int) -> bytes:
    return pack("hello", rank, MAIN, 0)


def site(num_ranks: int) -> bytes:
    """What the rank sends once of a launch at one line."""
    program = Program(tuple(range(num_ranks)), FINGERPRINT, "step", "float32[8]")
    return pack("site", 0, program, Place(1, 3, "step(x)"))


def referee_s(hosts: int, ranks_per_host: int) -> float:
    """The processor's time that the referee needs for a launch, by host."""
    num_ranks = hosts * ranks_per_host
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        server = Server(num_ranks, f"{folder}/referee.sock", KEY)
        server.listen("127.0.0.1")
        address = "127.0.0.1", server.port
        hub, heard = Hub(f"{folder}/hub.sock"), list[bytes]()
        streams = [
            Stream(hub, Client(address, authkey=KEY.encode()), lambda number: heard.append)
            for _ in range(hosts)
        ]
        says = [stream.to(number) for stream in streams for number in range(ranks_per_host)]
        for rank, say in enumerate(says):
            say(hello(rank))
            say(site(num_ranks))
        hub.flush()
        while server.step(0.2):
            pass
        took = []
        for _ in range(LAUNCHES):
            for say in says:
                say(LAUNCH.pack(b"L", 0, 0, 0))
            hub.flush()
            busy_s = 0.0
            while len(heard) < num_ranks:
                began = time.thread_time()
                server.step(0.2)
                busy_s += time.thread_time() - began
                hub.step(0)
            took.append(busy_s)
            assert {*heard} == {b"g0"}
            heard.clear()
        hub.close()
        server.close()
    return statistics.median(took) / hosts


class Played(Relay):
    """A relay whose steps are timed, in place of its thread."""

    def _run(self) -> None:
        pass

    def carry(self) -> None:
        self.step(0.2)


def relay_s(ranks: int) -> tuple[float, float]:
    """The processor's time of a launch, by rank: a relay's, and a rank's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        server = Server(ranks, f"{folder}/referee.sock", KEY)
        server.listen("127.0.0.1")
        relay = Played(f"{folder}/relay.sock", ("127.0.0.1", server.port), KEY)
        peers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(ranks)]
        for rank, peer in enumerate(peers):
            peer.connect(f"{folder}/relay.sock")
            peer.send(hello(rank))
            peer.send(site(ranks))
        for _ in range(50):
            relay.carry()
            server.step(0.01)
        of_relay, of_rank = [], []
        for _ in range(LAUNCHES):
            began = time.thread_time()
            for peer in peers:
                peer.send(LAUNCH.pack(b"L", 0, 0, 0))
            of_rank.append(time.thread_time() - began)
            began = time.thread_time()
            relay.carry()
            of_relay.append(time.thread_time() - began)
            while not select.select([relay.stream.socket], [], [], 0)[0]:
                server.step(0.2)
            began = time.thread_time()
            relay.carry()
            of_relay[-1] += time.thread_time() - began
            began = time.thread_time()
            assert {peer.recv(64) for peer in peers} == {b"g0"}
            of_rank[-1] += time.thread_time() - began
        relay.close()
        server.close()
    return statistics.median(of_relay) / ranks, statistics.median(of_rank) / ranks


def launch_s(parts: Parts, hosts: int, ranks_per_host: int, network_s: float) -> float:
    """How long a launch waits that all ranks announce at the same time.

    Args:
      network_s: there and back.
    """
    on_host = ranks_per_host * (parts.rank + parts.relay)  # on one core of it, one after the other
    return on_host + network_s + hosts * parts.host


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks-per-host", type=int, default=4)
    parser.add_argument("--network-us", type=float, default=100.0, help="there and back (100)")
    args = parser.parse_args()
    each = args.ranks_per_host
    relay, rank = relay_s(each)
    rows = []
    found = {}
    for hosts in (2, 8, 16, 64, 128, 256):
        parts = Parts(rank, relay, referee_s(hosts, each))
        added = launch_s(parts, hosts, each, args.network_us / 1e6)
        busy = hosts * parts.host
        found[hosts] = added
        rows.append(
            [
                str(hosts * each),
                str(hosts),
                f"{hosts * each / busy:,.0f}",
                f"{busy * 1e3:.2f}",
                f"{added * 1e3:.2f}",
                f"{busy / 0.002:.0%}",
            ]
        )
    print(f"a rank {rank * 1e6:.0f} us, a relay {relay * 1e6:.0f} us for each of its ranks")
    head = ["processes", "hosts", "announcements/s", "referee ms", "a launch waits ms"]
    table([*head, "of a core at 2 ms steps"], rows)
    ratio("256 processes on 64 hosts: a launch's wait, of 1 ms", found[64] / 1e-3, 1.0)


if __name__ == "__main__":
    main()
