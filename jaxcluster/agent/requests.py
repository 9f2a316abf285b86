"""What an agent does with files, all of them in its own folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxcluster.agent.folder import Folder

CHUNK = 4 << 20  # bytes of a file in one message

Answer = tuple[dict[str, Any], bytes]


def answer(folder: Folder, request: Mapping[str, Any], data: bytes | memoryview) -> Answer:
    """Do what a request says; returns the answer's body and its data.

        mkdir path              put path [at] + data         get path [at] -> size + data
        remove path             tail path [nbytes] -> size + data

    ``put`` at 0 begins the file, and at its end goes on with it. ``get`` gives at most ``CHUNK``
    bytes. ``remove`` of what is not there is no error.

    Raises:
      OSError: it can't be done, or the path is not in the folder.
      ValueError: there is no such request.
    """
    command = request["cmd"]
    if command not in ("mkdir", "put", "get", "tail", "remove"):
        raise ValueError(f"an agent knows no {command!r} request")
    path = folder.inside(request["path"])
    at = int(request.get("at", 0))
    if command == "mkdir":
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif command == "put":
        _put(path, at, data)
    elif command == "get":
        with open(path, "rb") as file:
            file.seek(at)
            return {"size": os.fstat(file.fileno()).st_size}, file.read(CHUNK)
    elif command == "tail":
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - min(int(request.get("nbytes", CHUNK)), CHUNK)))
            return {"size": size}, file.read(CHUNK)
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
