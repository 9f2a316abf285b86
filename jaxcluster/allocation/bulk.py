"""Large values to and from the memory of hosts, in parts, through their agents.

A part is a request of its own, and a few of them are on their way at once: one is encrypted while
another travels and a third is decrypted. What else goes to a host or comes from there, a cell's
output or the answer of a rank, waits for no more than those few.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from jaxcluster.agent.client import wait_all
from jaxcluster.agent.requests import Get, Mkdir, Put, Remove
from jaxcluster.allocation.fleet import Host
from jaxcluster.errors import LaunchError

PART_NBYTES = 1 << 20
WINDOW = 8  # parts on their way, for each host
PART_S = 600.0  # a slow connection takes its time; the stop button ends it sooner
MKDIR_S = 10.0

T = TypeVar("T")


class NoRoom(Exception):
    """There is no memory on the way for so many bytes: they travel as frames."""


class Memory:
    """A folder in the memory of the hosts of ranks, by which bytes go there and come here.

    Args:
      places: by rank.
      name: the folder's.
    """

    def __init__(self, places: Mapping[int, Host], name: str) -> None:
        self._places, self._name = places, name
        self.hosts = list({id(place): place for place in places.values()}.values())

    def path(self, rank: int, name: str = "") -> str:
        """Of a file in it, or of itself, for a rank."""
        return f"{self._places[rank].memory}/{self._name}/{name}".rstrip("/")

    def put(self, name: str, buffers: Mapping[int, memoryview]) -> None:
        """Write one file into the memory of each host.

        Args:
          buffers: what is in it, by where it begins.

        Raises:
          NoRoom: a host has none.
          LaunchError: a host does not answer.
        """
        parts = [(0, memoryview(b""))]
        for begin, buffer in buffers.items():
            for at in range(0, len(buffer), PART_NBYTES):
                parts.append((begin + at, buffer[at : at + PART_NBYTES]))
        asked = (
            host.begin(Put(f"{host.memory}/{self._name}/{name}", at), part)
            for at, part in parts
            for host in self.hosts
        )
        try:
            for one in _few_ahead(asked, len(self.hosts)):
                one.wait(PART_S)
        except LaunchError as error:
            if os.strerror(errno.ENOSPC) in error.message:
                raise NoRoom from None
            raise

    def get(self, rank: int, name: str, nbytes: int) -> bytearray:
        """What is in a file of that rank's host.

        Raises:
          LaunchError: the host does not answer, or the file is shorter.
        """
        host, path, found = self._places[rank], self.path(rank, name), bytearray()
        sizes = (min(PART_NBYTES, nbytes - at) for at in range(0, nbytes, PART_NBYTES))
        asked = (host.begin(Get(path, n * PART_NBYTES, size)) for n, size in enumerate(sizes))
        for one in _few_ahead(asked, 1):
            found += one.wait(PART_S)[1]
        if len(found) != nbytes:
            raise LaunchError(f"A part of a value from host {host.name} was lost on the way.")
        return found


def _few_ahead(asked: Iterable[T], num_hosts: int) -> Iterator[T]:
    """The answers of all, while the next ``WINDOW`` for each host are on their way."""
    under_way = deque[T]()
    for one in asked:
        under_way.append(one)
        if len(under_way) > WINDOW * num_hosts:
            yield under_way.popleft()
    yield from under_way


@contextlib.contextmanager
def memory(places: Mapping[int, Host]) -> Iterator[Memory]:
    """A folder in the memory of the hosts of ranks, gone afterwards.

    Raises:
      NoRoom: it would be this machine's, which they share already.
      LaunchError: a host does not answer.
    """
    name = f"value-{secrets.token_hex(6)}"
    made = Memory(places, name)
    if any(host.is_here for host in made.hosts):
        raise NoRoom
    try:
        wait_all([p.begin(Mkdir(f"{p.memory}/{name}")) for p in made.hosts], MKDIR_S)
        yield made
    finally:
        for host in made.hosts:
            host.begin(Remove(f"{host.memory}/{name}"))
