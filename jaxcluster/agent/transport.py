"""The sockets between a notebook and its agents, and who is let in.

An agent has one ROUTER, a notebook a DEALER to each. Both sides of a connection show that they have
the secret of a public key that the other was told of by the launcher, over a channel that it had
authenticated (CURVE). Only public keys ever leave a process.

CURVE alone lets in every client that knows the server's public key; who else may come is asked over
ZAP (ZeroMQ's RFC 27), which the agent answers itself: its owner's key and nobody's else.

zmq's own heartbeats watch a connection. They run on threads that need no interpreter, so a busy
notebook is not taken for a dead one.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils import z85

from jaxcluster.agent.messages import nbytes

HEARTBEAT_MS = 2000
DEAD_AFTER_MS = 6000  # without an answer to one
HANDSHAKE_MS = 10_000  # a connection that has not said who it is by then is closed
LARGE = 1 << 16  # bytes: a packet of more is sent from where it lies
ZAP = "inproc://zeromq.zap.01"
SERVICE = b"jaxcluster"  # an agent's socket, as ZAP calls it


@dataclass(frozen=True)
class Keys:
    """A pair of CURVE keys, in hexadecimal. The secret is shown nowhere.

    zmq's own spelling (Z85) may begin with a hyphen, and has letters that shells, batch systems and
    ssh each read in their own way: public keys pass through all of them.
    """

    public: str
    secret: str = field(repr=False)


def new_keys() -> Keys:
    public, secret = zmq.curve_keypair()
    return Keys(z85.decode(public).hex(), z85.decode(secret).hex())


class Authenticator:
    """Answers for a context whether a client may come in. It must be there before a socket binds.

    Args:
      owner: the public key that may.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], owner: str) -> None:
        self.owner = bytes.fromhex(owner)
        self.refused = 0
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ZAP)

    def answer(self) -> None:
        """Answer one question; nothing happens where there is none."""
        try:
            found = self.socket.recv_multipart(zmq.NOBLOCK)
            version, question, _, _, _, mechanism, *keys = found
        except zmq.Again:
            return
        who = b""
        if version == b"1.0" and mechanism == b"CURVE" and len(keys) == 1:
            who = self._who(keys[0])
        self.refused += not who
        status = [b"200", b"OK", who] if who else [b"400", b"not the owner's key", b""]
        self.socket.send_multipart([b"1.0", question, *status, b""])

    def _who(self, key: bytes) -> bytes:
        return b"owner" if key == self.owner else b""


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
    # A peer that is not there is an error to be heard of; one that comes back takes its old place.
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


def _prepare(socket: zmq.Socket[bytes]) -> None:
    for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
        socket.setsockopt(option, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, DEAD_AFTER_MS)


def send(socket: zmq.Socket[bytes], packet: list[Any]) -> bool:
    """Send a packet. Returns whether there was a connection to send it on."""
    large = nbytes(packet) > LARGE
    try:
        socket.send_multipart(packet, zmq.NOBLOCK, copy=not large)
    except zmq.ZMQError as error:
        if error.errno in (errno.EAGAIN, zmq.EHOSTUNREACH):
            return False
        raise
    return True
