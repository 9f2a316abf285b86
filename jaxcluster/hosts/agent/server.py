"""The agent of one host: ``python -P -m jaxcluster.hosts.agent --owner-key KEY [--bind tcp://ADDRESS:*]``.

It makes a private folder, starts the fork server as its child (``family``), and opens one socket.
Then it prints one JSON line: where it is, its public key, and what the host has (``report``):

    {"jaxcluster-agent": 1, "endpoint": "tcp://10.0.0.2:41234", "key": "...", "host": "h1", ...}

or, where it can't, ``{"jaxcluster-agent": 1, "error": "...", "hint": "...", "host": "h1"}``.

The socket gets messages of sessions (``messages``), one session for each client. The
first frame of a message says to whom:

    3       rank 3: an envelope and buffers, for its own socket; one DEALER for each client, so that
            each answer goes to the client that asked
    agent   one of ``requests``, or of ``wire.forks`` for the processes here: an envelope and data

It sends events, such as the ends of processes, to all clients.

A spawned process gets the environment that its owner has named (``Preload``). Else it gets the
host's own, without the variables that number a launcher's processes.

While a client's session is full, the agent reads no messages of ranks to that client. So the ranks'
sockets fill up, and the ranks wait.

It ends, with all that it has started, on a request, and

- on another host, when its standard input ends (``--owner-stdin``); a detached one with a client
  stays, and is detached no more. If not detached, it also ends when its lease has passed without a
  client with its owner's key. Time in which the agent itself was stopped does not count;
- on its owner's machine (``--owner``), when its standard input or that process ends. There is no
  lease: it lives on without processes for its owner's next cluster, ``IDLE_S`` long. Detached, it
  has no owner, and ends with its last process, or when nobody can find it any more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import zmq

from jaxcluster import wire
from jaxcluster.agreement.server import Relay
from jaxcluster.host.facts import AgentFacts
from jaxcluster.host.reachability import connection_errors
from jaxcluster.hosts.agent import folder as folders
from jaxcluster.hosts.agent import report, requests, transport
from jaxcluster.hosts.agent.family import Family
from jaxcluster.hosts.agent.messages import Session, is_new
from jaxcluster.hosts.agent.requests import AGENT
from jaxcluster.hosts.agent.transport import Listener
from jaxcluster.supervision import processes
from jaxcluster.supervision.ends import signal_pid
from jaxcluster.supervision.folders import Ways, keep_young
from jaxcluster.wire import forks
from jaxcluster.wire.codec import Buffer
from jaxcluster.wire.ops import Operation

LOOK_S = 1.0  # how often the agent looks for its clients
IDLE_S = 600.0  # an agent without processes waits so long for the next cluster
TOUCH_S = 3600.0  # how often its files are kept from services that clear /tmp
IO_THREADS = 2  # zmq's, which encrypt and send
RANK_HWM = 16  # messages of a rank that wait in its socket here
WAYS_S = 5.0  # for other hosts to answer


@dataclass
class Client:
    """One notebook, or one connection of it."""

    name: bytes
    session: Session
    ranks: dict[int, Listener] = field(default_factory=dict)
    absent_s: float = 0.0
    own: list[str] = field(default_factory=list)  # folders that are nobody else's


class Agent:
    """One asyncio loop over all sockets."""

    def __init__(self, options: argparse.Namespace, folder: folders.Folder, family: Family) -> None:
        self.options = options
        self.folder = folder
        self.family = family
        family.on_exit = self._tell
        self.clients: dict[bytes, Client] = {}
        self.detached = False
        self.ways = Ways()  # by which somebody finds a detached one
        self.found_by: list[str] = []
        self.alone_s = min(0.0, options.lease - options.first_lease)
        self.idle_s = 0.0
        self.why = ""
        self.has_failed = False
        self.door: asyncio.Server | None = None  # where other hosts try the way to here
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked_at = self._touched_at = time.monotonic()
        self._held: BinaryIO | None = None  # the file that shows that a detached cluster lives

    # ------------------------------------------------------------------ start

    def start(self) -> AgentFacts:
        """Listen; returns what is to be printed."""
        loop = asyncio.get_running_loop()
        for ending in (signal.SIGTERM, signal.SIGHUP):  # before there is anything to tidy up
            loop.add_signal_handler(ending, self.end_for, ending.name)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(IO_THREADS)
        authenticator = transport.Authenticator(self.context, self.options.owner_key)
        Listener(authenticator.socket, authenticator.answer)
        keys = transport.new_keys()
        said = report.host_report()
        # At any address of the family of this host's, so that that leads here.
        anywhere = "[::]" if ":" in said.address else "0.0.0.0"
        bind = self.options.bind or f"tcp://{anywhere}:*"
        if bind == "ipc":
            bind = f"ipc://{self.folder.path}/agent.sock"
        router, endpoint = transport.open_router(self.context, bind, keys)
        self.listen(router)
        address = f"[{said.address}]" if ":" in said.address else said.address
        self.endpoint = endpoint = endpoint.replace(f"//{anywhere}:", f"//{address}:")
        return AgentFacts(
            **vars(said),
            endpoint=endpoint,
            key=keys.public,
            token=processes.process_token(os.getpid()),
            folder=str(self.folder.path),
            memory=str(self.folder.memory),
        )

    def listen(self, router: zmq.Socket[bytes]) -> None:
        """Serve the clients of a socket."""
        self.router = Listener(router, self._receive)

    async def run(self) -> None:
        """Serve until there is a reason to end: ``why``."""
        await self.family.connect()
        if self.options.owner_stdin:
            try:
                asyncio.get_running_loop().add_reader(0, self._stdin)
            except PermissionError:  # a file, or /dev/null: nobody holds it open
                self.input_ended()
        while not self.why:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), LOOK_S)
            self.look_after(time.monotonic())

    # ------------------------------------------------------------------ whose it is

    def _has_company(self) -> bool:
        """Whether a notebook of its owner's is connected to it."""
        return any(client.session.is_open for client in self.clients.values())

    def end_for(self, why: str) -> None:
        """The first reason to end is reported."""
        self.why = self.why or why
        self._over.set()

    def _stdin(self) -> None:
        with contextlib.suppress(OSError):
            if os.read(0, 4096):
                return
        asyncio.get_running_loop().remove_reader(0)
        self.input_ended()

    def input_ended(self) -> None:
        """Who has started it, or a login to its host, is gone."""
        if self.options.owner:
            if not self.detached:
                self.end_for("its owner has ended")
            return
        if not self.detached or not self._has_company():
            self.end_for("its standard input has ended")
        self.detached = False  # nobody else finds the way to it: it is theirs who are there

    def look_after(self, now: float) -> None:
        """Look at who is still connected, and at the lease. Now and then."""
        passed = min(now - self._looked_at, 2 * LOOK_S)  # it may have been stopped itself
        self._looked_at = now
        for client in list(self.clients.values()):
            client.session.beat()
            self._transmit(client)
            client.absent_s = 0.0 if client.session.is_open else client.absent_s + passed
            if client.absent_s > self.options.lease:
                self._drop(client)
        self.family.reap_others()
        if now - self._touched_at > TOUCH_S:
            self._touched_at = now
            keep_young([str(self.folder.path), *self.found_by])
        self._look_whose(passed)

    def _look_whose(self, passed: float) -> None:
        """Whether the owner lives, is connected, or can find it.

        A process that the owner has forked may hold our standard input open.
        """
        self.alone_s = 0.0 if self._has_company() else self.alone_s + passed
        is_used = self.family.members or any(client.own for client in self.clients.values())
        self.idle_s = 0.0 if is_used else self.idle_s + passed
        if self.options.owner:
            if self.ways.are_lost():
                self.end_for("its folder or socket was removed")
            if not self.detached and not processes.is_alive(self.options.owner):
                self.end_for("its owner has ended")
            if self.idle_s > (0.0 if self.detached else IDLE_S):
                self.end_for("it has no processes")
        elif self.alone_s > self.options.lease and not self.detached:
            self.end_for(f"its owner has not been connected to it for {self.options.lease:g} s")

    def _detach(self, detached: bool, found_by: list[str]) -> None:
        self.detached, self.idle_s, self.found_by = detached, 0.0, found_by
        self.ways.close()
        if self._held is not None:
            self._held.close()
            self._held = None
        if detached:
            with contextlib.suppress(OSError, IndexError):  # or a file system without locks
                self._held = open(found_by[0], "rb")  # noqa: SIM115 - locked while it is detached
                fcntl.flock(self._held, fcntl.LOCK_SH)
            if self.endpoint.startswith("ipc:"):
                found_by = [*found_by, self.endpoint.removeprefix("ipc://")]
        self.ways = Ways(found_by)

    # ------------------------------------------------------------------ clients

    def _receive(self, packet: list[Any]) -> None:
        name, head, *frames = packet
        client = self.clients.get(name.bytes)
        if client is None:
            if (opens := is_new(head.buffer)) is None:
                return
            client = Client(name.bytes, Session(asks=False, limit=self.options.limit))
            if not opens:  # it was away for too long
                client.session.bye()
                self._transmit(client)
                return
            self.clients[name.bytes] = client
            self.alone_s = 0.0  # however short its visit is
        message = client.session.feed(head.buffer, frames)
        if client.session.is_over:
            self._drop(client)
            return
        self._transmit(client)
        if message:
            self._dispatch(client, message[0].bytes, list(message[1:]))

    def _transmit(self, client: Client) -> None:
        """Send what the session has to send; stop reading its ranks while it is full."""
        session = client.session
        for packet in session.take():
            if not self.router.send([client.name, *packet]):
                session.closed()  # it keeps what there is until the client is back
                break
        for listener in client.ranks.values():
            if listener.is_paused != session.is_full:
                listener.pause(session.is_full)

    def _post(self, client: Client, frames: list[Any]) -> None:
        client.session.send(frames)
        self._transmit(client)

    def _tell(self, event: forks.Event, but: Client | None = None) -> None:
        for client in list(self.clients.values()):
            if client is not but:
                self._post(client, [AGENT, forks.line_of(event)])

    def _drop(self, client: Client) -> None:
        """A client that has left, or has been away for too long: its session is over."""
        del self.clients[client.name]
        for rank in list(client.ranks):
            self._drop_rank(client, rank)
        for path in client.own:
            with contextlib.suppress(OSError):
                requests.answer(self.folder, requests.Remove(path))

    def _dispatch(self, client: Client, to: bytes, frames: list[Any]) -> None:
        if to == AGENT:
            asked = wire.decode(frames[0].buffer), [frame.buffer for frame in frames[1:]]
            task = asyncio.get_running_loop().create_task(self._answer(client, *asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        rank = int(to)
        if rank not in client.ranks:
            self._open_rank(client, rank)
        client.ranks[rank].send(frames)

    # ------------------------------------------------------------------ ranks

    def _open_rank(self, client: Client, rank: int) -> None:
        path = forks.rank_socket(str(self.folder.path), rank)
        socket = transport.open_rank(self.context, path, RANK_HWM)
        to = b"%d" % rank
        client.ranks[rank] = Listener(socket, lambda frames: self._post(client, [to, *frames]))
        client.ranks[rank].pause(client.session.is_full)

    def _drop_rank(self, client: Client, rank: int) -> None:
        """Close a socket to a rank, after what its process had still sent."""
        if (listener := client.ranks.pop(rank, None)) is None:
            return
        with contextlib.suppress(zmq.Again):
            for _ in range(4 * RANK_HWM):
                frames = listener.socket.recv_multipart(zmq.NOBLOCK, copy=False)
                client.session.send([b"%d" % rank, *frames])
        listener.close()

    # ------------------------------------------------------------------ requests

    async def _answer(
        self, client: Client, envelope: Mapping[str, Any], data: list[memoryview]
    ) -> None:
        beside: Buffer = b""
        body: Any
        try:
            op, (body, beside) = "reply", await self._do(client, wire.request_in(envelope), data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            op, body = "error", wire.Failure(type(error).__name__, reason_of(error))
        if self.clients.get(client.name) is client:
            told = wire.encode(op, envelope["id"], body)
            self._post(client, [AGENT, told, *([beside] if beside else [])])

    async def _do(
        self, client: Client, request: Operation[Any], data: list[memoryview]
    ) -> tuple[Any, Buffer]:
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
                await self.family.preload(env)
            case forks.Spawn(procs):
                answer = await self.family.spawn([self._placed(proc) for proc in procs])
            case forks.Kill(pid):
                await self.family.kill([pid])
            case forks.Signal(pid, number):
                if pid in self.family.members:
                    signal_pid(pid, number)
            case forks.Stop(why):
                self.family.exits.clear()  # those of the processes that come next are others
                self._tell(forks.Stopping(why), client)
                await self.family.kill(self.family.members)
            case forks.Exits():
                for exit in self.family.exits:
                    self._post(client, [AGENT, forks.line_of(exit)])
            case requests.RelayFrames(path, host, port, key):
                Relay(str(self.folder.inside(path)), (host, port), key)
            case requests.Recall(pid) if pid not in self.family.members:
                pass  # it has ended; another program may have its number
            case requests.Facts():
                answer = report.host_report()
            case requests.Listen(address):
                answer = await self._open_door(address)
            case requests.Ways(to):
                whys = await connection_errors(to, WAYS_S)
                own = (report.address_towards(address) for address, _ in to)
                answer = list(zip(own, whys, strict=True))
            case _:
                if isinstance(request, requests.Mkdir) and request.own:
                    client.own.append(request.path)
                if isinstance(request, requests.Remove) and request.path in client.own:
                    client.own.remove(request.path)
                return requests.answer(self.folder, request, data[0] if data else b"")
        return answer, b""

    def _placed(self, proc: forks.Process) -> forks.Process:
        """A process that is to be spawned, with its place on this host."""
        if proc.rank is not None:  # a new process: nothing goes from the old one's socket to it
            for client in self.clients.values():
                self._drop_rank(client, proc.rank)
        places = (proc.cwd, os.path.expanduser("~"))
        cwd = next(filter(os.path.isdir, places), str(self.folder.path))
        return replace(proc, cwd=cwd, env={**self.family.env, **proc.env})

    async def _open_door(self, address: str) -> int:
        if self.door is not None:
            self.door.close()
            self.door = None
        if not address:
            return 0
        # Linux before 5.4 lets 128 wait, and drops what more hosts send.
        self.door = await asyncio.start_server(
            lambda _, writer: writer.close(), address, 0, backlog=512
        )
        return int(self.door.sockets[0].getsockname()[1])

    # ------------------------------------------------------------------ end

    async def end(self) -> None:
        """Tell who is there, end all processes, leave no file. Does not return."""
        self._tell(forks.Lost(self.why))
        self.family.on_exit = lambda exit: None  # of which has been told
        await self.family.end()
        if self.clients:
            self.router.close(500)
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


def reason_of(error: BaseException) -> str:
    """An error's reason, without its number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f': {error.filename}' if error.filename else ''}"
    return str(error) or type(error).__name__
