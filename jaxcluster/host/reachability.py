"""Whether this host reaches sockets, many of them at once, and whether it can listen."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Sequence


def connection_errors(targets: Sequence[tuple[str, int]], timeout_s: float = 2.0) -> list[str]:
    """Why no connection can be made to each (address, port); "" if one can.

    An address with a slash is the path of a Unix socket.
    """
    found = ["no answer"] * len(targets)
    waiting = selectors.DefaultSelector()
    with contextlib.ExitStack() as opened:
        opened.callback(waiting.close)
        for number, (address, port) in enumerate(targets):
            to: str | tuple[str, int] = address if "/" in address else (address, port)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                tried = opened.enter_context(
                    socket.socket(socket.AF_UNIX if to is address else family)
                )
                tried.setblocking(False)
                if (code := tried.connect_ex(to)) not in (0, errno.EINPROGRESS):
                    found[number] = os.strerror(code)
                    continue
                waiting.register(tried, selectors.EVENT_WRITE, number)
            except OSError as error:
                found[number] = error.strerror or str(error)
        deadline = time.monotonic() + timeout_s
        while waiting.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                waiting.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                found[key.data] = os.strerror(code) if code else ""
    return found


def why_not_listen(address: str) -> str:
    """Why this host can't listen at ``HOST:PORT``; "" if it can.

    A port that is only held (``SO_REUSEPORT``), as for JAX's coordinator, is free.
    """
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            trial.bind(found[0][4])
    except (OSError, ValueError, IndexError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""
