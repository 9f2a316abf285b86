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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from jaxcluster.agent.client import Asked, wait_all
from jaxcluster.agent.requests import Get, Mkdir, Put, Remove
from jaxcluster.allocation.fleet import Host
from jaxcluster.errors import LaunchError

PART_NBYTES = 1 << 20
WINDOW = 8  # parts on their way, for each host
PART_S = 600.0  # a slow connection takes its time; the stop button ends it sooner
MKDIR_S = 10.0

Take = Callable[[int, memoryview], None]  # where a part begins, and what it is


@dataclass
class File:
    """A file in a host's memory that is to be brought here.

    Attributes:
      take: is given its parts, in order.
    """

    place: Host
    path: str
    nbytes: int
    take: Take


@dataclass
class _Course:
    """What is on its way from one host."""

    files: list[File]
    waiting: Iterator[tuple[File, int]] = field(init=False)
    under_way: deque[tuple[File, int, Asked[int]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.waiting = (
            (file, at) for file in self.files for at in range(0, file.nbytes, PART_NBYTES)
        )

    def ask(self) -> None:
        while len(self.under_way) < WINDOW:
            if (found := next(self.waiting, None)) is None:
                return
            file, at = found
            nbytes = min(PART_NBYTES, file.nbytes - at)
            asked = file.place.begin(Get(file.path, at, nbytes))
            self.under_way.append((file, at, asked))

    def take(self) -> None:
        file, at, asked = self.under_way.popleft()
        _, data = asked.wait(PART_S)
        if len(data) != min(PART_NBYTES, file.nbytes - at):
            raise LaunchError(f"A part of a value from host {file.place.name} was lost on the way.")
        file.take(at, data)


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
        under_way: deque[Asked[None]] = deque()
        try:
            for at, part in parts:
                for host in self.hosts:
                    path = f"{host.memory}/{self._name}/{name}"
                    under_way.append(host.begin(Put(path, at), part))
                while len(under_way) > WINDOW * len(self.hosts):
                    under_way.popleft().wait(PART_S)
            while under_way:
                under_way.popleft().wait(PART_S)
        except LaunchError as error:
            if os.strerror(errno.ENOSPC) in error.message:
                raise NoRoom from None
            raise
        finally:
            for asked in under_way:
                asked.forget()

    def get(self, files: Iterable[tuple[int, str, int, Take]]) -> None:
        """Bring files here, from all hosts at once.

        Args:
          files: of each whose rank's host has it, its name and size, and who is given its parts.

        Raises:
          LaunchError: a host does not answer.
        """
        found = [File(self._places[r], self.path(r, name), n, take) for r, name, n, take in files]
        courses = [_Course([file for file in found if file.place is host]) for host in self.hosts]
        try:
            while courses:
                for course in list(courses):
                    course.ask()
                    if course.under_way:
                        course.take()
                    else:
                        courses.remove(course)
        finally:
            for course in courses:
                for _, _, asked in course.under_way:
                    asked.forget()


@contextlib.contextmanager
def memory(places: Mapping[int, Host]) -> Iterator[Memory]:
    """A folder in the memory of the hosts of ranks, gone afterwards.

    Raises:
      LaunchError: a host does not answer.
    """
    name = f"value-{secrets.token_hex(6)}"
    made = Memory(places, name)
    try:
        wait_all([p.begin(Mkdir(f"{p.memory}/{name}")) for p in made.hosts], MKDIR_S)
        yield made
    finally:
        for host in made.hosts:
            host.begin(Remove(f"{host.memory}/{name}")).forget()
