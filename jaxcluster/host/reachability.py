"""Whether this host reaches sockets, many of them at once, and whether it can listen."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Sequence
from urllib.parse import unquote

UNIX = "unix:"  # gRPC's own way to write the path of a Unix socket


async def connection_errors(
    targets: Sequence[tuple[str, int]], timeout_s: float = 2.0
) -> list[str]:
    """Why no connection can be made to each (address, port); "" if one can.

    An address with a slash is the path of a Unix socket.
    """

    async def why(address: str, port: int) -> str:
        try:
            async with asyncio.timeout(timeout_s):
                if "/" in address:
                    _, opened = await asyncio.open_unix_connection(address)
                else:
                    _, opened = await asyncio.open_connection(address, port)
        except TimeoutError:
            return "no answer"
        except OSError as error:
            code = error.errno or 0  # below 0: a name has no address
            return os.strerror(code) if code > 0 else error.strerror or str(error)
        opened.close()
        return ""

    return await asyncio.gather(*(why(*target) for target in targets))


def why_not_listen(address: str, has_others: bool = False) -> str:
    """Why this host can't listen at ``HOST:PORT`` or ``unix:/PATH``; "" if it can.

    With ``has_others`` other hosts are to reach it: Debian names its own host ``127.0.1.1``.

    gRPC would share the port of another coordinator (``SO_REUSEPORT``), whose ranks would mix.
    """
    if address.startswith(UNIX):
        path = unquote(address.removeprefix(UNIX))
        is_free = os.access(os.path.dirname(path), os.W_OK) and not os.path.isdir(path)
        return "" if is_free else f"{path} can't be written to"
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a restart
            trial.bind(found[0][4])
        if has_others and ipaddress.ip_address(at := found[0][4][0]).is_loopback:
            return f"it is {at} there, which other hosts can't reach"
    except (OSError, ValueError, IndexError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""
