"""What an agent does with files: all of them in its own folder, but for one that it looks for."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxcluster.agent.folder import Folder
from jaxcluster.host import ringfile
from jaxcluster.host.free_space import free_nbytes, memory_room
from jaxcluster.host.procfs import look_at

CHUNK = 4 << 20  # bytes of a file in one message
DRAFT = ".part~"

Answer = tuple[dict[str, Any], bytes]


def answer(folder: Folder, request: Mapping[str, Any], data: bytes | memoryview) -> Answer:
    """Do what a request says; returns the answer's body and its data.

        mkdir path -> room      put path [at] + data         get path [at nbytes] -> size + data
        remove path             tail path [nbytes] -> size + data
        look pids -> looks: for each what the kernel says of the process, or null
        ring path [at] -> start, end, size + data: what ``ringfile.read`` finds there
        write path files + data             move path to             shares path text -> shares

    ``mkdir`` says what may be written there, of memory without doing harm; a folder that is its
    client's ``own`` goes when the client does. ``put`` at 0 begins the file, and at its end goes on
    with it. ``get`` gives at most ``CHUNK`` bytes. ``remove`` of what is not there is not an error.
    ``write`` makes or replaces whole files in the folder ``path``: ``files`` are their names and
    sizes, in the order of the data.
    ``shares`` says whether there is a file of that text, anywhere on the host.

    Raises:
      OSError: it can't be done, or the path is not in the folder.
      ValueError: there is no such request.
    """
    command = request["cmd"]
    if command == "shares":
        return {"shares": _holds(request["path"], request["text"].encode())}, b""
    if command == "look":
        found = {pid: look_at(int(pid)) for pid in request["pids"]}
        return {"looks": {pid: look and asdict(look) for pid, look in found.items()}}, b""
    if command not in ("mkdir", "put", "get", "tail", "remove", "write", "move", "ring"):
        raise ValueError(f"an agent does not know the request {command!r}")
    path = folder.inside(request["path"])
    at = int(request.get("at", 0))
    if command == "mkdir":
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        in_memory = not path.is_relative_to(os.path.realpath(folder.path))
        return {"room": memory_room(path) if in_memory else free_nbytes(path)}, b""
    elif command == "put":
        _put(path, at, data)
    elif command == "get":
        with open(path, "rb") as file:
            file.seek(at)
            nbytes = min(int(request.get("nbytes", CHUNK)), CHUNK)
            return {"size": os.fstat(file.fileno()).st_size}, file.read(nbytes)
    elif command == "tail":
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - min(int(request.get("nbytes", CHUNK)), CHUNK)))
            return {"size": size}, file.read(CHUNK)
    elif command == "ring":
        part = ringfile.read(path, at)
        return {"start": part.start, "end": part.end, "size": part.size}, bytes(part.data)
    elif command == "write":
        view = memoryview(data)
        for name, nbytes in request["files"]:
            draft = folder.inside(f"{path}/{name}{DRAFT}")
            _put(draft, 0, view[:nbytes])
            _replace(draft, draft.with_name(draft.name.removesuffix(DRAFT)))
            view = view[nbytes:]
    elif command == "move":
        _replace(path, folder.inside(request["to"]))
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return {}, b""


def _put(path: Path, at: int, data: bytes | memoryview) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if at else os.O_TRUNC)
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.seek(at)
        file.write(data)


def _replace(draft: Path, path: Path) -> None:
    """Put a file in the place of an older one, at once; its time is at least a second later.

    By whole seconds and the size Python judges whether what it has compiled is still right, and by
    the time alone autoreload whether a module is to be loaded again.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        older, own = os.stat(path), os.stat(draft)
        if own.st_mtime < int(older.st_mtime) + 1:
            os.utime(draft, (own.st_atime, int(older.st_mtime) + 1))
    draft.replace(path)


def _holds(path: str, text: bytes) -> bool:
    """Whether the regular file at ``path`` holds this text and nothing else."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read(4096) == text
    except OSError:
        return False
