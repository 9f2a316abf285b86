"""The sockets between a notebook and its agents, and who is let in.

An agent has one ROUTER, a notebook a DEALER to each. Each side of a connection shows that it has
the secret key of a public key (CURVE). The launcher has brought the public keys over a channel that
it had authenticated. Only public keys ever leave a process.

CURVE alone lets in every client that knows the server's public key. So zmq asks over ZAP (ZeroMQ's
RFC 27) who may come. The agent answers: its owner's key and no other.

zmq's own heartbeats watch a connection. They run on threads that need no interpreter, so a busy
notebook is not taken for a dead one.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils import z85

from jaxcluster.wire.sockets import has_come, receive, send

HEARTBEAT_MS = 2000
DEAD_AFTER_MS = 6000  # without an answer to one
HANDSHAKE_MS = 10_000  # a connection that has not said who it is by then is closed
AT_ONCE = 64  # messages that are taken from one socket before the others have their turn
ZAP = "inproc://zeromq.zap.01"
SERVICE = b"jaxcluster"  # an agent's socket, as ZAP calls it


@dataclass(frozen=True)
class Keys:
    """A pair of CURVE keys, in hexadecimal. The secret is shown nowhere.

    Public keys pass through shells, batch systems and ssh. zmq's own spelling (Z85) may begin with
    a hyphen. It also has letters that each of these reads differently.
    """

    public: str
    secret: str = field(repr=False)


def new_keys() -> Keys:
    public, secret = zmq.curve_keypair()
    return Keys(z85.decode(public).hex(), z85.decode(secret).hex())


class Listener:
    """Has an asyncio loop call ``on_message`` with each message of a socket, until it is closed.

    A socket's descriptor tells of a message once. Any call on the socket may take the news
    in: only one that has been asked and has nothing tells of the next one (ZMQ_FD in
    zmq_getsockopt(3)). So it is asked once more after whatever was done.

    Args:
      using: held by whoever touches the socket, where others than the loop do.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        on_message: Callable[[list[Any]], object],
        using: threading.Lock | None = None,
    ) -> None:
        self.socket, self.on_message = socket, on_message
        self._using = using or threading.Lock()
        self._loop = asyncio.get_running_loop()
        self.is_paused = self._looks_soon = False
        self._loop.add_reader(socket.fileno(), self.look)
        self.look_soon()

    def look(self) -> None:
        """Take in what has come; who sends all the time keeps nobody else waiting."""
        self._looks_soon = False
        for _ in range(AT_ONCE):
            with self._using:
                if self.is_paused or self.socket.closed or not has_come(self.socket):
                    return
                frames = receive(self.socket)
            try:
                self.on_message(frames)
            except Exception:  # somebody's callback must not end what all share
                traceback.print_exc()
        self.look_soon()

    def look_soon(self) -> None:
        if not self._looks_soon:  # else each message of a flood would lead to more looks
            self._looks_soon = True
            self._loop.call_soon(self.look)

    def send(self, packet: list[Any]) -> bool:
        """Send a packet. Returns whether there was a connection to send it on."""
        self.look_soon()
        with self._using:
            try:
                return send(self.socket, packet)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                return False

    def pause(self, is_paused: bool) -> None:
        """Leave what comes where it is, or no longer."""
        self.is_paused = is_paused
        self.look_soon()

    def close(self, linger_ms: int = 0) -> None:
        with self._using:
            self._loop.remove_reader(self.socket.fileno())
            self.socket.close(linger_ms)


class Authenticator:
    """Answers for a context whether a client may come in. It must be there before a socket binds.

    Args:
      owner: the public key that may.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], owner: str) -> None:
        self.owner = bytes.fromhex(owner)
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ZAP)

    def answer(self, question: Sequence[Any]) -> None:
        """Answer a question."""
        version, id, _, _, _, mechanism, *keys = (bytes(frame) for frame in question)
        is_owner = version == b"1.0" and mechanism == b"CURVE" and self.accepts(keys)
        status = [b"200", b"OK", b"owner"] if is_owner else [b"400", b"not the owner's key", b""]
        self.socket.send_multipart([b"1.0", id, *status, b""])

    def accepts(self, keys: Sequence[bytes]) -> bool:
        """Whether it is the owner who shows these."""
        return keys == [self.owner]


def open_router(
    context: zmq.Context[zmq.Socket[bytes]], bind: str, keys: Keys
) -> tuple[zmq.Socket[bytes], str]:
    """An agent's socket, and where it listens.

    Args:
      bind: ``tcp://ADDRESS:*`` or ``ipc://PATH``.

    Raises:
      OSError: it can't listen there.
    """
    router = context.socket(zmq.ROUTER)
    _prepare(router)
    # Sending to an absent peer raises an error. A peer that comes back takes its old place.
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    router.setsockopt(zmq.ZAP_DOMAIN, SERVICE)
    router.curve_server = True
    router.curve_secretkey = bytes.fromhex(keys.secret)
    if bind.startswith("tcp://["):
        router.setsockopt(zmq.IPV6, 1)
    try:
        router.bind(bind)
    except zmq.ZMQError as error:
        router.close(0)
        raise OSError(error.errno, f"can't listen on {bind}: {error.strerror}") from None
    endpoint = router.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return router, endpoint.decode().rstrip("\0")


def open_dealer(
    context: zmq.Context[zmq.Socket[bytes]], name: bytes, server: str, keys: Keys
) -> zmq.Socket[bytes]:
    """A notebook's socket to the agent whose public key is ``server``. Not connected yet."""
    dealer = context.socket(zmq.DEALER)
    _prepare(dealer)
    dealer.setsockopt(zmq.IPV6, 1)
    dealer.setsockopt(zmq.ROUTING_ID, name)
    dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued without a connection: we keep it
    dealer.setsockopt(zmq.RECONNECT_IVL, 20)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    dealer.curve_serverkey = bytes.fromhex(server)
    dealer.curve_publickey = bytes.fromhex(keys.public)
    dealer.curve_secretkey = bytes.fromhex(keys.secret)
    return dealer


def open_rank(
    context: zmq.Context[zmq.Socket[bytes]], address: str, most: int = 0
) -> zmq.Socket[bytes]:
    """A socket to a rank on this host, which may not listen yet.

    Args:
      most: how many of its messages wait here, of up to 1 MiB of text each; 0: any number.
    """
    dealer = context.socket(zmq.DEALER)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, 0),
        (zmq.RCVHWM, most),
        (zmq.RECONNECT_IVL, 5),
        (zmq.RECONNECT_IVL_MAX, 100),
    ):
        dealer.setsockopt(option, value)
    dealer.connect(address)
    return dealer


def _prepare(socket: zmq.Socket[bytes]) -> None:
    for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
        socket.setsockopt(option, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, DEAD_AFTER_MS)
