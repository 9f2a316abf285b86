"""What a cluster's connection to its hosts makes of what it sees of them."""

from __future__ import annotations

import socket

from jaxcluster.allocation.fleet import _refusing


def test_only_an_answer_tells_that_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not _refusing([f"tcp://127.0.0.1:{port}"])
    others = ["tcp://host.invalid:9", "ipc:///tmp/ssh.sock"]
    assert _refusing([*others, f"tcp://127.0.0.1:{port}"]) == {f"tcp://127.0.0.1:{port}"}


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        return  # there is no IPv6 here
    port = server.getsockname()[1]
    server.close()
    assert _refusing([f"tcp://[::1]:{port}"])
