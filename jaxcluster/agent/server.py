"""The agent of one host: ``python -P -m jaxcluster.agent --owner-key KEY [--bind tcp://ADDRESS:*]``.

It makes a private folder, starts the fork server as its child (``family``), opens one socket, and
prints one JSON line that says where it is, what its public key is, and what the host has
(``report``):

    {"jaxcluster-agent": 1, "endpoint": "tcp://10.0.0.2:41234", "key": "...", "host": "h1", ...}

or, where it can't, ``{"jaxcluster-agent": 1, "error": "...", "hint": "...", "host": "h1"}``.

What comes on the socket are messages of sessions (``messages``), one session for each client. The
first frame of a message says to whom:

    3       rank 3: an envelope and buffers, for its own socket; one DEALER for each client, so that
            answers go to who has asked
    agent   one of ``requests``, or of ``wire.forks`` for the processes here; data behind it

It sends events, such as the ends of processes, to all clients as ``event``.

A process that is spawned gets the host's own environment, but for what numbers a launcher's
processes, or the environment that its owner has named (``Preload``).

When a client's session is full, the agent stops reading what ranks send to that client until it is
no more; the ranks' sockets fill up and the ranks wait.

It ends, with all that it has started, on a request, and

- on another host, when its standard input ends (``--owner-stdin``), where it is detached as soon as
  nobody is connected; and when no client with its owner's key has been connected for the time of
  its lease. Time in which the agent itself was stopped does not count;
- on its owner's machine (``--owner``), when its standard input or that process ends. There is no
  lease: it lives on without processes for its owner's next cluster, ``IDLE_S`` long. Detached, it
  has no owner, and ends with its last process, or when nobody can find the way to it any more.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import zmq

from jaxcluster.agent import folder as folders
from jaxcluster.agent import report, requests, transport
from jaxcluster.agent.family import Family
from jaxcluster.agent.messages import Session, new_name, sender_of
from jaxcluster.agent.report import AgentFacts
from jaxcluster.agreement.frames import Relay
from jaxcluster.host.reachability import connection_errors
from jaxcluster.supervision import processes
from jaxcluster.supervision.folders import is_still, touch
from jaxcluster.wire import encode_body, forks
from jaxcluster.wire.requests import AGENT, EVENT, Reply, Request, parsed
from jaxcluster.wire.sockets import Buffer

LOOK_S = 1.0  # how often it is looked who is there
IDLE_S = 600.0  # that one without processes waits for its owner's next cluster
TOUCH_S = 3600.0  # how often its files are kept from those who clear /tmp
IO_THREADS = 2  # of zmq's, that encrypt and send
RANK_HWM = 16  # messages of a rank that wait in its socket here, of up to 1 MiB of text each
AT_ONCE = 64  # messages that are taken from one socket before the others have their turn


@dataclass
class Client:
    """One notebook, or one connection of it."""

    name: bytes
    session: Session
    ranks: dict[int, zmq.Socket[bytes]] = field(default_factory=dict)
    is_paused: bool = False
    absent_s: float = 0.0
    own: list[str] = field(default_factory=list)  # folders that are nobody else's


class Agent:
    """One loop over all sockets."""

    def __init__(self, options: argparse.Namespace, folder: folders.Folder, family: Family) -> None:
        self.options = options
        self.folder = folder
        self.family = family
        family.on_exit = self._tell
        self.clients: dict[bytes, Client] = {}
        self.detached = False
        self.found_by: dict[str, os.stat_result | None] = {}  # None: it had gone already
        self.alone_s = min(0.0, options.lease - options.first_lease)
        self.idle_s = 0.0
        self.why = ""
        self.has_failed = False
        self.door: socket.socket | None = None  # where other hosts try the way to here
        self._handlers: dict[Any, Callable[[], object]] = {}
        self._looked_at = self._touched_at = time.monotonic()
        self._heard = -1  # the fork server's connection
        self._held: BinaryIO | None = None  # the file that shows that a detached cluster lives
        self._missed = 0  # how often in a row it could not be found

    # ------------------------------------------------------------------ start

    def start(self) -> AgentFacts:
        """Listen; returns what is to be printed."""
        options = self.options
        self._mind_signals()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(IO_THREADS)
        self.authenticator = transport.Authenticator(self.context, options.owner_key)
        keys = transport.new_keys()
        said = report.host_report()
        bind = options.bind or anywhere_for(said.address)
        if bind == "ipc":
            bind = f"ipc://{self.folder.path}/agent.sock"
        self.router, endpoint = transport.open_router(self.context, bind, keys)
        address = f"[{said.address}]" if ":" in said.address else said.address
        for anywhere in ("0.0.0.0", "[::]"):
            endpoint = endpoint.replace(f"//{anywhere}:", f"//{address}:")
        self.endpoint = endpoint
        return AgentFacts(
            **vars(said),
            endpoint=endpoint,
            key=keys.public,
            token=processes.process_token(os.getpid()),
            folder=str(self.folder.path),
            memory=str(self.folder.memory),
        )

    def _mind_signals(self) -> None:
        """Before there is anything to tidy up."""
        self._woken, _ = processes.wake_on(signal.SIGCHLD)
        for ending in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ending, lambda number, _: self.end_for(signal.Signals(number).name))
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    # ------------------------------------------------------------------ loop

    def run(self) -> None:
        """Serve until there is a reason to end: ``why``."""
        self.poller = zmq.Poller()
        self._watch(self.authenticator.socket, self.authenticator.answer)
        self._watch(self.router, self._receive)
        self._watch(self._woken, partial(os.read, self._woken, 4096))
        if self.options.owner_stdin:
            self._watch(0, self._stdin)
        self._mind_family()
        while not self.why:
            for source, _ in self.poller.poll(self._timeout_ms()):
                if (handler := self._handlers.get(source)) is not None:  # gone in this very pass
                    handler()
            self._look_after(time.monotonic())

    def _has_company(self) -> bool:
        """Whether a notebook of its owner's is connected to it."""
        return any(client.session.is_open for client in self.clients.values())

    def end_for(self, why: str) -> None:
        """The first reason to end is the one that is told."""
        self.why = self.why or why

    def _mind_family(self) -> None:
        """Listen to the fork server that there is now."""
        connection = self.family.connection.fileno()
        if connection != self._heard:
            self._unwatch(self._heard)
            self._heard = connection
            if connection >= 0:
                self._watch(connection, self._hear_family)
        if connection >= 0:
            flags = zmq.POLLIN | (zmq.POLLOUT if self.family.has_more else 0)
            self.poller.modify(connection, flags)

    def _hear_family(self) -> None:
        self.family.flush()
        self.family.receive()
        self._mind_family()

    def _stdin(self) -> None:
        with contextlib.suppress(OSError):
            if os.read(0, 4096):
                return
        self._unwatch(0)
        if self.options.owner:
            if not self.detached:
                self.end_for("its owner has ended")
            return
        if not self.detached or not self._has_company():
            self.end_for("its standard input has ended")
        self.detached = False  # nobody else finds the way to it: it is theirs who are there

    def _watch(self, source: Any, handler: Callable[[], object]) -> None:
        self._handlers[source] = handler
        self.poller.register(source, zmq.POLLIN)

    def _unwatch(self, source: Any) -> None:
        if self._handlers.pop(source, None) is not None:
            self.poller.unregister(source)

    def _timeout_ms(self) -> int:
        due = [c.session.due for c in self.clients.values() if c.session.due is not None]
        at = min([self._looked_at + LOOK_S, *due])
        return max(0, int((at - time.monotonic()) * 1000) + 1)

    def _look_after(self, now: float) -> None:
        """What time brings: late acknowledgements, who is there, the lease."""
        for client in self.clients.values():
            client.session.tick(now)
            self._transmit(client)
        passed = now - self._looked_at
        if passed < LOOK_S:
            return
        self._looked_at = now
        passed = min(passed, 2 * LOOK_S)  # it may have been stopped itself
        for client in list(self.clients.values()):
            client.session.acknowledge()
            self._transmit(client)
            client.absent_s = 0.0 if client.session.is_open else client.absent_s + passed
            if client.absent_s > self.options.lease:
                self._drop(client)
        self.family.reap_others()
        if now - self._touched_at > TOUCH_S:
            self._touched_at = now
            touch([*self.family.own_files(), *self.found_by])
        self._look_whose(passed)

    def _look_whose(self, passed: float) -> None:
        """Whether the owner lives, is connected, or can find it.

        A process that the owner has forked may hold our standard input open.
        """
        self.alone_s = 0.0 if self._has_company() else self.alone_s + passed
        is_used = self.family.members or any(client.own for client in self.clients.values())
        self.idle_s = 0.0 if is_used else self.idle_s + passed
        if self.options.owner:
            ways = self.found_by.items()
            is_lost = not all(was is not None and is_still(path, was) for path, was in ways)
            self._missed = self._missed + 1 if is_lost else 0  # twice: it may be changing
            if self._missed > 1:
                self.end_for("nobody can find the way to it any more")
            if not self.detached and not processes.is_alive(self.options.owner):
                self.end_for("its owner has ended")
            if self.idle_s > (0.0 if self.detached else IDLE_S):
                self.end_for("it has no processes")
        elif self.alone_s > self.options.lease and not self.detached:
            self.end_for(f"its owner has not been connected to it for {self.options.lease:g} s")

    def _detach(self, detached: bool, found_by: list[str]) -> None:
        self.detached, self.idle_s, self.found_by = detached, 0.0, {}
        if self._held is not None:
            self._held.close()
            self._held = None
        if not detached:
            return
        with contextlib.suppress(OSError, IndexError):  # or a file system without locks
            self._held = open(found_by[0], "rb")  # noqa: SIM115 - locked as long as it is detached
            fcntl.flock(self._held, fcntl.LOCK_SH)
        own = [self.endpoint.removeprefix("ipc://")] if self.endpoint.startswith("ipc:") else []
        for path in [*found_by, *own]:
            self.found_by[path] = None
            with contextlib.suppress(OSError):
                self.found_by[path] = os.stat(path)

    # ------------------------------------------------------------------ clients

    def _receive(self) -> None:
        now = time.monotonic()
        for _ in range(AT_ONCE):
            try:
                name, head, *frames = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            client = self.clients.get(name.bytes)
            if client is None:
                if sender_of(head.buffer) != name.bytes:
                    continue
                session = Session(new_name(), name.bytes, limit=self.options.limit)
                client = self.clients[name.bytes] = Client(name.bytes, session)
                self.alone_s = 0.0  # however short its visit is
            message = client.session.feed(head.buffer, frames, now)
            if message:
                self._dispatch(client, message[0].bytes, message[1:])
            if client.session.is_over:
                self._drop(client)
            else:
                self._transmit(client)

    def _transmit(self, client: Client) -> None:
        """Send what the session has to send; stop reading its ranks while it is full."""
        session = client.session
        for packet in session.take():
            if not transport.send(self.router, [client.name, *packet]):
                session.closed()  # it keeps what there is until the client is back
                break
        if session.is_full != client.is_paused:
            client.is_paused = session.is_full
            for rank, sock in client.ranks.items():
                if client.is_paused:
                    self._unwatch(sock)
                else:
                    self._watch(sock, partial(self._from_rank, client, rank, sock))

    def _post(self, client: Client, frames: list[Any]) -> None:
        client.session.send(frames)
        self._transmit(client)

    def _drop(self, client: Client) -> None:
        """A client that has left, or has been away for too long: its session is over."""
        del self.clients[client.name]
        for rank in list(client.ranks):
            self._drop_rank(client, rank)
        for path in client.own:
            with contextlib.suppress(OSError):
                requests.answer(self.folder, requests.Remove(path))

    def _dispatch(self, client: Client, to: bytes, frames: Any) -> None:
        try:
            if to == AGENT:
                self._answer(client, json.loads(frames[0].bytes), [f.buffer for f in frames[1:]])
            else:
                rank = int(to)
                sock = client.ranks.get(rank) or self._open_rank(client, rank)
                transport.send(sock, list(frames))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            # Of our owner, but not of our version: nothing that is worth all the ranks.
            with contextlib.suppress(OSError):
                print(f"unknown message: {error!r}", file=sys.stderr, flush=True)

    # ------------------------------------------------------------------ processes

    def _ask_family(self, client: Client, id: int, request: Request[Any]) -> None:
        def then(reply: Reply) -> None:
            if self.clients.get(client.name) is client:
                self._reply(client, replace(reply, id=id))

        match request:
            case forks.Spawn(procs):
                request = forks.Spawn([self._placed(proc) for proc in procs])
            case forks.Stop(why):
                self.family.exits.clear()  # those of the processes that come next are others
                self._tell(forks.Stopping(why), client)
                request = forks.Kill([])
        self.family.ask(request, then)
        self._mind_family()

    def _tell(self, event: forks.Event, but: Client | None = None) -> None:
        for client in list(self.clients.values()):
            if client is not but:
                self._post(client, [EVENT, forks.line_of(event)])

    def _placed(self, proc: forks.Process) -> forks.Process:
        """A process that is to be spawned, with its place on this host."""
        if proc.rank is not None:  # a new process: nothing goes from the old one's socket to it
            for client in self.clients.values():
                self._drop_rank(client, proc.rank)
        places = (proc.cwd, os.path.expanduser("~"))
        cwd = next(filter(os.path.isdir, places), str(self.folder.path))
        return replace(proc, cwd=cwd, env={**self.family.env, **proc.env})

    # ------------------------------------------------------------------ ranks

    def _open_rank(self, client: Client, rank: int) -> zmq.Socket[bytes]:
        sock = self.context.socket(zmq.DEALER)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.SNDHWM, 0)
        sock.setsockopt(zmq.RCVHWM, RANK_HWM)
        sock.setsockopt(zmq.RECONNECT_IVL, 5)  # a rank that does not listen yet
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, 100)
        sock.connect(forks.rank_socket(str(self.folder.path), rank))
        client.ranks[rank] = sock
        if not client.is_paused:
            self._watch(sock, partial(self._from_rank, client, rank, sock))
        return sock

    def _from_rank(self, client: Client, rank: int, sock: zmq.Socket[bytes]) -> None:
        to = b"%d" % rank
        for _ in range(AT_ONCE):
            if client.session.is_full:
                return
            try:
                frames = sock.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._post(client, [to, *frames])

    def _drop_rank(self, client: Client, rank: int) -> None:
        """Close a socket to a rank, after what its process had still sent."""
        if (sock := client.ranks.pop(rank, None)) is None:
            return
        self._unwatch(sock)
        with contextlib.suppress(zmq.Again):
            for _ in range(4 * RANK_HWM):
                frames = sock.recv_multipart(zmq.NOBLOCK, copy=False)
                client.session.send([b"%d" % rank, *frames])
        sock.close(0)

    # ------------------------------------------------------------------ the agent itself

    def _answer(self, client: Client, message: Mapping[str, Any], data: list[memoryview]) -> None:
        id = message["id"]
        beside: Buffer = b""
        try:
            request = parsed(message)
            if isinstance(request, forks.Spawn | forks.Kill | forks.Signal | forks.Stop):
                self._ask_family(client, id, request)
                return
            answer, beside = self._do(client, request, data[0] if data else b"")
            reply = Reply(id, answer)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            reply = Reply(id, error=f"{error.strerror or error}{where}")
        except (ValueError, KeyError, TypeError) as error:
            reply = Reply(id, error=f"{type(error).__name__}: {error}")
        self._reply(client, reply, *([beside] if beside else ()))

    def _do(self, client: Client, request: Request[Any], data: Buffer) -> tuple[Any, Buffer]:
        """Do what a client asks for; returns the answer, and what goes beside it.

        Raises:
          OSError: it can't be done, or the path is not in the folder.
        """
        answer: Any = None
        match request:
            case requests.Quit():
                self.end_for("it was asked to end")
            case requests.Detach(detached, found_by):
                self._detach(detached, found_by)
            case forks.Preload(env):
                self.family.preload(env)
                self._mind_family()
            case forks.Exits():
                for exit in self.family.exits:
                    self._post(client, [EVENT, forks.line_of(exit)])
            case requests.RelayFrames(path, host, port, key):
                Relay(str(self.folder.inside(path)), (host, port), key)
            case requests.Facts():
                answer = report.host_report()
            case requests.Listen(address):
                answer = self._open_door(address)
            case requests.Ways(to):  # the others wait for 2 s where nobody answers
                answer = connection_errors([(a, p) for a, p in to])
            case _:
                if isinstance(request, requests.Mkdir) and request.own:
                    client.own.append(request.path)
                if isinstance(request, requests.Remove) and request.path in client.own:
                    client.own.remove(request.path)
                return requests.answer(self.folder, request, data)
        return answer, b""

    def _open_door(self, address: str) -> int:
        if self.door is not None:
            self.door.close()
            self.door = None
        if not address:
            return 0
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.door = socket.create_server((address, 0), family=family, backlog=64)
        return int(self.door.getsockname()[1])

    def _reply(self, client: Client, reply: Reply, *data: Buffer) -> None:
        self._post(client, [AGENT, encode_body(reply), *data])

    # ------------------------------------------------------------------ end

    def end(self) -> None:
        """Tell who is there, end all processes, leave no file. Does not return."""
        for client in list(self.clients.values()):
            self._reply(client, Reply(ending=self.why))
        self.family.on_exit = lambda exit: None  # of which has been told
        self.family.end()
        self.folder.remove()
        if self.options.bind.startswith("ipc://"):
            Path(self.options.bind.removeprefix("ipc://")).unlink(missing_ok=True)
        if self.clients:
            self.router.setsockopt(zmq.LINGER, 500)
            self.router.close()
            self.context.destroy(0)
        with contextlib.suppress(OSError):
            line = {"jaxcluster-agent-ended": self.why, "host": socket.gethostname()}
            print(json.dumps(line), flush=True)
        os._exit(self.status)

    @property
    def status(self) -> int:
        """Its exit status. A Job makes another pod for one that is not 0; mpiexec ends all hosts.

        So it is 0 for an end that comes of others' ends, unless ``--signalled-status`` asks.
        """
        is_signal = self.why.startswith("SIG")
        return int(self.options.signalled_status if is_signal else self.has_failed)


def anywhere_for(address: str) -> str:
    """Where to listen so that this host's address leads here: on its family's, any port."""
    return "tcp://[::]:*" if ":" in address else "tcp://0.0.0.0:*"
