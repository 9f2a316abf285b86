"""What ranks of other hosts read here, on a socket of its own, by themselves.

It is what ranks here have saved (``engine.state.remote_files``). They show a key that the notebook
has made for it, which opens some folders, as long as these are there. Nothing can be written.

    get path at nbytes -> the size + data
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from jaxcluster.agent import requests, transport
from jaxcluster.agent.folder import Folder
from jaxcluster.wire.requests import parsed
from jaxcluster.wire.sockets import Buffer


class GivenOut:
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
        self.readers: dict[str, list[Path]] = {}  # by key, what may be read
        self.socket, self.endpoint = transport.open_router(context, bind, keys, transport.READING)

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
        """Answer what has come, of so many requests."""
        for _ in range(most):
            try:
                name, head, *_ = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                request = json.loads(head.buffer.tobytes())
                answer, data = self._give(request, self.readers[str(head.get("User-Id"))])
                answer["id"] = request["id"]
                transport.send(self.socket, [name.bytes, json.dumps(answer).encode(), *data])

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
