"""The requests to an agent, and its work on files, all of which lie in its own folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import field
from pathlib import Path
from typing import Any

from jaxcluster.host import ringfile
from jaxcluster.host.facts import HostFacts
from jaxcluster.host.free_space import memory_room
from jaxcluster.hosts.agent.folder import Folder
from jaxcluster.supervision.processes import state_of
from jaxcluster.wire.codec import Buffer
from jaxcluster.wire.ops import Operation

AGENT = b"agent"  # to or from the agent; else a rank's number
CHUNK = 4 << 20  # bytes of a file in one message
DRAFT = ".part~"


class Quit(Operation[None], op="quit"):
    """End, with all that runs there."""


class Detach(Operation[None], op="detach"):
    """It is nobody's now; or its owner's again.

    Attributes:
      found_by: files there without which nobody finds the way to it: it ends with one of them. The
        first one is locked meanwhile, which shows that it lives.
    """

    detached: bool
    found_by: list[str] = field(default_factory=list)


class Facts(Operation[HostFacts], op="host_facts"):
    """The host's facts now."""


class Listen(Operation[int], op="listen"):
    """Take in who tries an address of it, until the next of these ("": nowhere); the port."""

    address: str


class Ways(Operation[list[tuple[str, str]]], op="ways"):
    """Its own address on the way to each of these, and why that can't be reached, or "".

    Takes 5 s at most.
    """

    to: list[tuple[str, int]]


class RelayFrames(Operation[None], op="relay_frames"):
    """Carry what ranks say on a socket here to the cluster's referee, and back."""

    path: str
    host: str
    port: int
    key: str


class Look(Operation[str], op="process"):
    """The kernel's letter for what a process does."""

    pid: int


class Mkdir(Operation[int], op="mkdir"):
    """Make a folder; what may be written there, of memory without doing harm.

    Its client's ``own`` goes when the client does.
    """

    path: str
    own: bool = False


class Put(Operation[None], op="put"):
    """Write data into a file: at 0, replace the file in one step; at its end, append."""

    path: str
    at: int = 0


class Get(Operation[int], op="get"):
    """At most ``CHUNK`` bytes of a file, from the end where ``at`` is negative; its size."""

    path: str
    at: int = 0
    nbytes: int = CHUNK


class Recall(Operation[None], op="recall"):
    """A part of what one of its processes has in memory; nothing if it may not be read."""

    pid: int
    at: int
    nbytes: int


class Ring(Operation[tuple[int, int, int]], op="ring"):
    """The part of a log that ``ringfile.read`` finds: its start, end and size."""

    path: str
    at: int = 0


class Remove(Operation[None], op="remove"):
    """Remove a file or a folder; a missing one is no error."""

    path: str


def answer(folder: Folder, request: Operation[Any], data: Buffer = b"") -> tuple[Any, Buffer]:
    """Do what a request says of files; returns the answer, and the bytes that go beside it.

    Raises:
      OSError: it can't be done, or the path is not in the folder.
    """
    if isinstance(request, Look):
        return state_of(request.pid), b""
    if isinstance(request, Recall):
        with contextlib.suppress(OSError), open(f"/proc/{request.pid}/mem", "rb", 0) as memory:
            memory.seek(request.at)
            return None, memory.read(min(request.nbytes, CHUNK))
        return None, b""
    path = folder.inside(request.path)  # type: ignore[attr-defined]
    match request:
        case Mkdir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            in_memory = not path.is_relative_to(os.path.realpath(folder.path))
            return memory_room(path) if in_memory else shutil.disk_usage(path).free, b""
        case Put():
            _put(path, request.at, data)
        case Get():
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                at = request.at if request.at >= 0 else size + max(request.at, -CHUNK)
                file.seek(max(0, at))
                return size, file.read(min(request.nbytes, CHUNK))
        case Ring():
            part = ringfile.read(path, request.at)
            return (part.start, part.end, part.size), part.data
        case Remove() if path.is_dir():
            shutil.rmtree(path)
        case Remove():
            path.unlink(missing_ok=True)
    return None, b""


def _put(path: Path, at: int, data: Buffer) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    to = path if at else path.with_name(path.name + DRAFT)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if at else os.O_TRUNC)
    with open(os.open(to, flags, 0o600), "wb") as file:
        file.seek(at)
        file.write(data)
    if not at:
        to.replace(path)
