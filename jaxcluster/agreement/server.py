"""The referee's process, and the way to it from other hosts.

Each thread of a rank that launches has a connection, and so has its control thread. The end of the
control thread's connection shows the rank's death. They connect to a Unix socket: the referee's,
or on other hosts a ``Relay``'s. A relay sends what the ranks of its host say together as one
message over TCP.

For a job of plain processes (see ``jaxcluster.agree``) this is a program.
``python -m jaxcluster.agreement.server referee PATH NUM_RANKS [ADDRESS]`` prints the port for
relays. ``... relay PATH ADDRESS PORT`` prints a line once it listens. Once the process that has
started them and all their ranks are gone, both remove the folder of PATH and end.
"""

from __future__ import annotations

import contextlib
import itertools
import marshal
import os
import select
import shutil
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

from jaxcluster.agreement.messages import KEY, LAUNCH, Place, Program, pack, receive, unpack
from jaxcluster.agreement.referee import Lane, Referee

LOOK_S = 1.0
LENGTH = struct.Struct("<I")  # of what a stream sends at once
FORMAT = 2  # of marshal: later ones look for what comes twice
Take = Callable[[bytes], None]  # takes a frame of one connection; b"" is its end


class Hub:
    """Hears the threads of this host's ranks, which connect to a Unix socket.

    If one takes no more, the hub does not wait, but sends the rest later. An example is a rank that
    is suspended while hundreds of its cells are skipped.

    Args:
      path: of the socket. Whoever can open it is trusted.

    Attributes:
      queued: the streams that have to be flushed.
    """

    def __init__(self, path: str) -> None:
        self.queued: list[Stream] = []
        self._epoll = select.epoll()
        self._ready: dict[int, tuple[Any, Callable[[int], None]]] = {}
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(512)
        self.watch(self._listener, self._accept)

    def join(self, send: Take) -> Take:
        """The listener to a new connection, to which ``send`` sends."""
        raise NotImplementedError

    def watch(self, peer: Any, ready: Callable[[int], None]) -> None:
        """Call ``ready`` with epoll's events when something has come. Any thread."""
        self._ready[peer.fileno()] = peer, ready
        self._epoll.register(peer.fileno(), select.EPOLLIN)

    def drop(self, peer: Any) -> None:
        """Close a peer that is gone."""
        self._epoll.unregister(peer.fileno())
        del self._ready[peer.fileno()]
        peer.close()

    def step(self, timeout_s: float | None = None) -> bool:
        """Wait for frames, and hear those that have come; returns whether some have."""
        ready = self._epoll.poll(timeout_s)
        for number, events in ready:
            self._ready[number][1](events)
        self.flush()
        return bool(ready)

    def flush(self) -> None:
        """Send other hosts their queued messages."""
        while self.queued:
            self.queued.pop().flush()

    def close(self) -> None:
        """Close the socket and all connections."""
        self._epoll.close()
        for peer, _ in self._ready.values():
            peer.close()

    def _accept(self, _: int) -> None:
        peer, _ = self._listener.accept()
        late: deque[bytes] = deque()  # frames that it does not take yet

        def send(frame: bytes) -> None:
            try:
                if not late:
                    peer.send(frame, socket.MSG_DONTWAIT)
                    return
            except BlockingIOError:
                self._epoll.modify(peer.fileno(), select.EPOLLIN | select.EPOLLOUT)
            except OSError:  # it has ended: that is read
                return
            late.append(frame)

        def ready(events: int) -> None:
            if events & select.EPOLLOUT:
                with contextlib.suppress(OSError):  # it takes no more again, or has ended
                    while late:
                        peer.send(late[0], socket.MSG_DONTWAIT)
                        late.popleft()
                    self._epoll.modify(peer.fileno(), select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                if not (frame := receive(peer)):
                    self.drop(peer)
                hear(frame)

        hear = self.join(send)
        self.watch(peer, ready)


class Stream:
    """Threads of another host, over one connection: all that they say at once is one message.

    Args:
      hub: which waits for it.
      connection: which has been authenticated.
      join: gets what sends to a new thread, and returns what takes its frames.

    Attributes:
      takes: by the numbers of threads, what takes their frames; b"" if the connection has ended.
    """

    def __init__(
        self, hub: Hub, connection: Connection[Any, Any], join: Callable[[Take], Take]
    ) -> None:
        with connection:
            self.socket = socket.socket(fileno=os.dup(connection.fileno()))
        # Else a second message waits until the first one is acknowledged, which takes 40 ms.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.takes: dict[int, Take] = {}
        self._hub, self._join = hub, join
        self._queue, self._received = list[tuple[int, bytes]](), b""
        hub.watch(self.socket, self._ready)

    def to(self, number: int) -> Take:
        """A function that queues frames of this thread for the next ``flush``."""
        queue, queued = self._queue, self._hub.queued

        def send(frame: bytes) -> None:
            if not queue:
                queued.append(self)
            queue.append((number, frame))

        return send

    def flush(self) -> None:
        """Send the queued messages. A read shows later that a peer is gone."""
        message = marshal.dumps(self._queue, FORMAT)
        self._queue.clear()
        try:
            self.socket.sendall(LENGTH.pack(len(message)) + message)
        except OSError:
            pass

    def _ready(self, _: int) -> None:
        frames: list[tuple[int, bytes]] = []
        if not (data := receive(self.socket)):
            self._hub.drop(self.socket)
            frames = [(number, b"") for number in self.takes]
        data = self._received + data
        while len(data) >= LENGTH.size and len(data) >= (
            end := LENGTH.size + LENGTH.unpack_from(data)[0]
        ):
            frames += marshal.loads(data[LENGTH.size : end])
            data = data[end:]
        self._received = data
        take_of = self.takes.get
        for number, frame in frames:
            if (take := take_of(number)) is None:
                take = self.takes[number] = self._join(self.to(number))
            take(frame)
            if not frame:
                del self.takes[number]


class Relay(Hub):
    """Carries frames of this host's ranks on a thread, until one of the two sides is gone.

    Args:
      path: of the Unix socket for the ranks.
      address, key: of the referee.

    Attributes:
      stream: to the referee.

    Raises:
      OSError, AuthenticationError: the referee can't be reached, or has another key.
    """

    def __init__(self, path: str, address: tuple[str, int], key: str) -> None:
        with socket.create_connection(address) as way:  # multiprocessing's Client can't use IPv6
            connection: Connection[Any, Any] = Connection(way.detach())
        answer_challenge(connection, key.encode())
        deliver_challenge(connection, key.encode())
        super().__init__(path)
        self.stream = Stream(self, connection, lambda send: lambda frame: None)  # it has ended
        self._numbers = itertools.count()
        threading.Thread(target=self._run, name="jaxcluster-relay", daemon=True).start()

    def join(self, send: Take) -> Take:
        number = next(self._numbers)
        self.stream.takes[number] = send
        carry = self.stream.to(number)

        def hear(frame: bytes) -> None:
            carry(frame)
            if not frame:
                self.stream.takes.pop(number, None)

        return hear

    def _run(self) -> None:
        try:
            while self.stream.socket.fileno() >= 0:
                self.step()
        finally:  # its ranks hear that the referee is gone
            self.close()
            self.stream.takes.clear()


class Server(Hub):
    """Gives what ranks say to a ``Referee``, and what it says to the ranks.

    Args:
      num_ranks: of the cluster.
      path: of the Unix socket. Whoever can open it is trusted.
      key: what relays have to know.
      clock: in seconds.

    Attributes:
      port: where it hears relays.
    """

    def __init__(
        self,
        num_ranks: int,
        path: str,
        key: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(path)
        self.referee, self.port = Referee(num_ranks), 0
        self._key, self._clock = key, clock
        self._programs: dict[tuple[tuple[int, ...], int], Program] = {}
        self._patience_s: float | None = None  # the referee's, and when it ends
        self._until = 0.0

    def listen(self, address: str) -> None:
        """Hear relays of other hosts at this address, too."""
        family = "AF_INET6" if ":" in address else "AF_INET"
        listener = Listener((address, 0), family, 512, authkey=self._key.encode())
        self.port = int(listener.address[1])

        def accept() -> None:  # on a thread: who is slow to authenticate keeps nobody waiting
            while True:
                with contextlib.suppress(OSError, EOFError, AuthenticationError):
                    Stream(self, listener.accept(), self.join)

        threading.Thread(target=accept, name="jaxcluster-relays", daemon=True).start()

    def serve(self) -> None:
        """Never returns."""
        while True:
            self.step()

    def step(self, timeout_s: float | None = None) -> bool:
        """Wait for messages, and answer those that have come; returns whether some have."""
        if (patience_s := self.referee.patience_s) is not None:
            if patience_s != self._patience_s:
                self._until = self._clock() + patience_s
            left_s = max(0.0, self._until - self._clock())
            timeout_s = left_s if timeout_s is None else min(left_s, timeout_s)
        self._patience_s = patience_s
        has_heard = super().step(timeout_s)
        if patience_s is not None and self._clock() >= self._until:
            self._patience_s = None
            self.referee.tick()
            self.flush()
        return has_heard

    def join(self, send: Take) -> Take:
        """A function that gives a thread's messages to the referee."""
        referee, clock = self.referee, self._clock
        sites: dict[int, tuple[Program, Place]] = {}
        me: Lane | None = None

        def tell(word: str, what: Any, *more: Any) -> None:
            if word == "go":
                send(b"g%d" % what if what else b"g0")
            else:
                send(pack(word, what, *more))

        def hear(frame: bytes) -> None:
            nonlocal me
            if frame.startswith(b"L") and me is not None:
                _, site, given, folded = LAUNCH.unpack(frame)
                program, place = sites[site]
                referee.launch(me, program, given, folded, place, clock())
                return
            match unpack(frame) if frame else ("gone",):
                case "hello", rank, name, seq:
                    me = referee.hello(rank, name, seq, tell)
                case "site", site, program, place:
                    key = program.processes, program.fingerprint
                    sites[site] = self._programs.setdefault(key, program), place
                case "look", number, launches:
                    tell("looked", number, referee.look(clock(), launches))
                case "stop", seq:
                    referee.stop(seq)
                case "arrive" | "end" | "gone" | "unmade" | "withdraw" as word, *told if me:
                    getattr(referee, word)(me, *told)

        return hear


def main(argv: Sequence[str]) -> None:
    parent, key = os.getppid(), os.environ.pop(KEY, "")
    command, path, *rest = argv
    try:
        if command == "relay":
            relay = Relay(path, (rest[0], int(rest[1])), key)
            print("listens", flush=True)
            while os.getppid() == parent or relay.stream.takes:
                time.sleep(LOOK_S)
        else:
            server = Server(int(rest[0]), path, key)
            if rest[1:]:
                server.listen(rest[1])
            print(server.port, flush=True)
            while os.getppid() == parent or server.referee.look(0.0).connected:
                server.step(LOOK_S)
    finally:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
