"""What ranks of other hosts do with files here, on a socket of its own, by themselves.

They bring copies of what they have into this host's memory (``engine.state.mirror``), and show a
key that the notebook has made for them. It opens no other door: who has it may write below one
folder, and read nothing.

    mkdir path -> the room  put path at + data      link path to      mark path + data
    remove path

``mark`` makes or replaces a whole file. ``copy`` says for whose copy a request is, and ``number``
on which of its connections it was made: those of a former one are passed over.

Or they read what ranks here have saved, or have brought (``engine.state.remote_files``). Each key
for that opens some folders, as long as they are there, and nothing can be written with it.

    get path at nbytes -> the size + data
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from jaxcluster.agent import requests, transport
from jaxcluster.agent.folder import Folder
from jaxcluster.wire.requests import parsed
from jaxcluster.wire.sockets import Buffer

COMMANDS = ("mkdir", "put", "link", "mark", "remove")


class Mirrors:
    """The socket, and what is done for who comes there.

    Args:
      keys: the agent's own.
      bind: where it listens.

    Raises:
      OSError: it can't listen there.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        folder: Folder,
        keys: transport.Keys,
        bind: str,
    ) -> None:
        self._folder = folder
        self._root = folder.memory
        self._connections: dict[str, int] = {}
        self.readers: dict[str, list[Path]] = {}  # by key, what may be read
        self.socket, self.endpoint = transport.open_router(context, bind, keys, transport.MIRRORS)

    def take_for(self, root: str) -> None:
        """From now on take in what lies below this folder.

        Raises:
          OSError: it is not one of the agent's.
        """
        self._root, self._connections = self._folder.inside(root), {}

    def give_out(self, key: str, roots: Sequence[str]) -> None:
        """From now on who has a key may read what lies below these folders.

        Raises:
          OSError: one is not the agent's.
        """
        self.readers = {
            k: paths for k, paths in self.readers.items() if any(map(Path.is_dir, paths))
        }
        self.readers[key] = [self._folder.inside(root) for root in roots]

    def receive(self, most: int) -> None:
        """Do what has come, of so many requests."""
        for _ in range(most):
            try:
                name, head, *data = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                request, who = json.loads(head.buffer.tobytes()), head.get("User-Id")
                found: list[Buffer] = []
                if who in self.readers:
                    answer, found = self._give(request, self.readers[who])
                elif self._is_late(request):
                    continue
                else:
                    answer = self._answer(request, data[0].buffer if data else b"")
                answer["id"] = request["id"]
                transport.send(self.socket, [name.bytes, json.dumps(answer).encode(), *found])

    def _give(
        self, request: Mapping[str, Any], roots: Sequence[Path]
    ) -> tuple[dict[str, Any], list[Buffer]]:
        """A part of a file that may be read."""
        try:
            path = self._folder.inside(request["path"])
            if request["cmd"] != "get" or not any(map(path.is_relative_to, roots)):
                raise PermissionError(errno.EPERM, "it is not given out")
            size, data = requests.answer(self._folder, parsed(request))
        except OSError as error:
            return {"error": error.strerror or str(error)}, []
        return {"answer": size}, [data]

    def _is_late(self, request: Mapping[str, Any]) -> bool:
        copy, number = str(request["copy"]), int(request["number"])
        is_late = number < self._connections.get(copy, 0)
        self._connections[copy] = max(number, self._connections.get(copy, 0))
        return is_late

    def _answer(self, request: Mapping[str, Any], data: Any) -> dict[str, Any]:
        command, found = request["cmd"], None
        try:
            path = self._inside(request["path"])
            if command not in COMMANDS:
                raise ValueError(f"there is no {command!r}")
            if command == "link":
                to = self._inside(request["to"])
                to.unlink(missing_ok=True)
                os.link(path, to)
            elif command == "mark":
                draft = path.with_name(f"{path.name}{requests.DRAFT}")
                requests.answer(self._folder, requests.Put(str(draft)), data)
                draft.replace(path)
            else:
                found = requests.answer(self._folder, parsed(request), data)[0]
        except OSError as error:
            return {"error": error.strerror or str(error)}
        return {"answer": found}

    def _inside(self, name: str) -> Path:
        """A path that is for mirrors, as long as these are wanted: their folder is there."""
        path = self._folder.inside(name)
        if not path.is_relative_to(self._root) or not self._root.is_dir():
            raise PermissionError(errno.EPERM, "it is not for mirrors")
        return path
