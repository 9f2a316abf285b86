"""The agent of one host: ``python -P -m jaxcluster.agent --owner-key KEY [--bind tcp://ADDRESS:*]``.

It makes a private folder, starts the fork server as its child, opens one socket, and prints one
JSON line that says where it is, what its public key is, and what the host has (``report``):

    {"jaxcluster-agent": 1, "endpoint": "tcp://10.0.0.2:41234", "key": "...", "host": "h1", ...}

or, where it can't, ``{"jaxcluster-agent": 1, "error": "...", "hint": "...", "host": "h1"}``.

What comes on the socket are messages of sessions (``messages``), one session for each client. The
first frame of a message says to whom:

    fork    JSON lines for the fork server, as they are: each client has its own connection to it.
            ``detach`` alone is the agent's, which then needs no owner
    3       rank 3: an envelope and buffers, for its own socket; one DEALER for each client, so that
            answers go to who has asked
    agent   one of ``requests``, for the agent itself, data behind it

A process to be spawned with ``"inherit": true`` gets the host's own environment under its ``env``;
what this agent's own launcher set to number its processes is left out.

When a client's session is full, the agent stops reading what ranks send to that client until it is
no more; the ranks' sockets fill up and the ranks wait.

It ends, with all that it has started, when it is told to; when its standard input ends
(``--owner-stdin``), where it is detached as soon as nobody is connected; when its fork server has
ended; and when no client with its owner's key has been connected for the time of its lease. Time in
which the agent itself was stopped does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from jaxcluster.agent import folder as folders
from jaxcluster.agent import report, requests, transport
from jaxcluster.agent.forkserver_client import ForkServerClient
from jaxcluster.agent.messages import Session, new_name, sender_of
from jaxcluster.agent.report import AgentFacts
from jaxcluster.agreement.frames import Relay
from jaxcluster.host.reachability import connection_errors
from jaxcluster.supervision import ends, processes, starting
from jaxcluster.wire import encode_body
from jaxcluster.wire.forks import Detach, Lost, Process, Spawn, line_of
from jaxcluster.wire.requests import Reply, Request, parsed
from jaxcluster.wire.sockets import Buffer

LEASE_S = 20.0
FIRST_LEASE_S = 60.0  # a start of many hosts takes its time until it connects to the first
# A fork server that still imports does not hear that it should end. What a killed one has started
# is ours then, and ended in the same way.
QUIT_S = 0.5
LOOK_S = 1.0  # how often it is looked who is there
FORK_SERVER_S = 60.0  # until it listens, on a busy host
IO_THREADS = 2  # of zmq's, that encrypt and send
RANK_HWM = 16  # messages of a rank that wait in its socket here, of up to 1 MiB of text each
AT_ONCE = 64  # messages that are taken from one socket before the others have their turn

# What would make a rank believe that it is a task of a job: it is the agent that is.
JOB_PREFIXES = (
    "HYDI_",
    "HYDRA_",
    "IPP_",  # of its own launchers: its controller and engines would be those of its cluster
    "MPIR_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "PRTE_",
    "SLURM_",
    "SRUN_",
)


@dataclass
class Client:
    """One notebook, or one connection of it."""

    name: bytes
    session: Session
    fork: ForkServerClient | None = None
    ranks: dict[int, zmq.Socket[bytes]] = field(default_factory=dict)
    is_paused: bool = False
    absent_s: float = 0.0
    own: list[str] = field(default_factory=list)  # folders that are nobody else's


class Agent:
    """One loop over all sockets."""

    def __init__(self, options: argparse.Namespace, folder: folders.Folder) -> None:
        self.options = options
        self.folder = folder
        self.clients: dict[bytes, Client] = {}
        self.addresses: dict[int, str] = {}  # of ranks that were spawned with one of their own
        self.detached = False
        self.alone_s = min(0.0, options.lease - options.first_lease)
        self.why = ""
        self.has_failed = self.is_cut_short = False
        self.doors = report.Doors()
        self.fork_server: subprocess.Popen[bytes] | None = None
        self._handlers: dict[Any, Callable[[], object]] = {}
        self._looked_at = time.monotonic()

    # ------------------------------------------------------------------ start

    def start(self) -> AgentFacts:
        """Start the fork server and listen; returns what is to be printed."""
        options = self.options
        self._mind_signals()
        processes.adopt_orphans()
        self.env = own_environment(os.environ)
        self._start_fork_server()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(IO_THREADS)
        self.authenticator = transport.Authenticator(self.context, options.owner_key)
        keys = self.keys = transport.new_keys()
        said = report.host_report()
        self.address = said.address
        bind = options.bind or anywhere_for(self.address)
        self.router, endpoint = transport.open_router(self.context, bind, keys)
        for anywhere in ("0.0.0.0", "[::]"):
            endpoint = endpoint.replace(f"//{anywhere}:", f"//{_in_url(said.address)}:")
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

    def _start_fork_server(self) -> None:
        self.fork_path = self.folder.path / "fork.sock"
        self.fork_log = self.folder.path / "fork.log"
        own = [str(self.folder.path), str(self.folder.memory)]
        self._record()  # first: whoever finds the folder must be able to judge it
        with open(self.fork_log, "ab") as log:
            # What ranks write has the modes that its user expects.
            umask, path = self.options.umask, str(self.fork_path)
            self.fork_server = starting.fork_server(path, self.env, os.getcwd(), log, own, umask)
        self._record()

    def _record(self) -> None:
        name, space = processes.process_token, processes.pid_space()
        server = "" if self.fork_server is None else name(self.fork_server.pid)
        me, memory = name(os.getpid()), str(self.folder.memory)
        self.folder.write(folders.Record(self.options.id, me, server, space, memory))

    # ------------------------------------------------------------------ loop

    def run(self) -> None:
        """Serve until there is a reason to end: ``why``."""
        self.poller = zmq.Poller()
        self._watch(self.authenticator.socket, self.authenticator.answer)
        self._watch(self.router, self._receive)
        self._watch(self._woken, partial(os.read, self._woken, 4096))
        if self.options.owner_stdin:
            self._watch(0, self._stdin)
        if not self._wait_for_fork_server():
            return
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

    def _wait_for_fork_server(self) -> bool:
        """Whether it listens, which takes as long as a Python does. Clients wait meanwhile."""
        deadline = time.monotonic() + FORK_SERVER_S
        while not self.why and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self._fork_watch = ForkServerClient(self.fork_path)
                self._watch(self._fork_watch.sock.fileno(), self._fork_events)
                return True
            if self._fork_server_code() is not None:
                break
            if select.select([0] if 0 in self._handlers else [], [], [], 0.005)[0]:
                self._stdin()
        self._cut_short(f"its fork server did not start\n{starting.log_end(self.fork_log)}")
        return False

    def _cut_short(self, why: str) -> None:
        """End, although there is work left."""
        self.is_cut_short = self.is_cut_short or not self.why
        self.end_for(why)

    def _fork_events(self) -> None:
        """The agent's own connection is there to hear of the fork server's end."""
        if self._fork_watch.receive() is None:
            code = self._fork_server_code(2)
            log = starting.log_end(self.fork_log)
            self._cut_short(f"its fork server has ended with code {code}\n{log}")

    def _fork_server_code(self, timeout_s: float = 0) -> int | None:
        """The fork server's exit code, if it has ended by then."""
        assert self.fork_server is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.fork_server.wait(timeout_s)
        return self.fork_server.returncode

    def _stdin(self) -> None:
        with contextlib.suppress(OSError):
            if os.read(0, 4096):
                return
        self._unwatch(0)
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
        self.alone_s = 0.0 if self._has_company() else self.alone_s + passed
        if self.alone_s > self.options.lease and not self.detached:
            self.end_for(f"its owner has not been connected to it for {self.options.lease:g} s")
        server = self.fork_server
        for pid in processes.children():  # orphans, where it is a container's first process
            if server is None or pid != server.pid:
                ends.reap(pid)

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
        client.session.send(frames, time.monotonic())
        self._transmit(client)

    def _drop(self, client: Client) -> None:
        """A client that has left, or has been away for too long: its session is over."""
        del self.clients[client.name]
        for rank in list(client.ranks):
            self._drop_rank(client, rank)
        self._close_fork(client)
        for path in client.own:
            with contextlib.suppress(OSError):
                requests.answer(self.folder, requests.Remove(path))

    def _dispatch(self, client: Client, to: bytes, frames: Any) -> None:
        try:
            if to == b"fork":
                self._to_fork(client, frames[0].bytes)
            elif to == b"agent":
                self._answer(client, json.loads(frames[0].bytes), [f.buffer for f in frames[1:]])
            else:
                rank = int(to)
                sock = client.ranks.get(rank) or self._open_rank(client, rank)
                transport.send(sock, list(frames))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            # Of our owner, but not of our version: nothing that is worth all the ranks.
            with contextlib.suppress(OSError):
                print(f"unknown message: {error!r}", file=sys.stderr, flush=True)

    # ------------------------------------------------------------------ the fork server

    def _to_fork(self, client: Client, line: bytes) -> None:
        message = json.loads(line)
        match command := parsed(message):
            case Detach():
                self.detached = command.detached
                self._post(client, [b"fork", line_of(Reply(message["id"]))])
                return
            case Spawn():
                procs = [self._placed(proc) for proc in command.procs]
                line = Spawn(procs).told(message["id"])
        if client.fork is None:
            try:
                client.fork = ForkServerClient(self.fork_path)
            except OSError:  # it has just ended; the agent's own connection says so
                self._post(client, [b"fork", line_of(Lost())])
                return
            self._watch(client.fork.sock.fileno(), lambda: self._from_fork(client))
        with contextlib.suppress(OSError):
            client.fork.send(line)
            self._mind_outbox(client, client.fork)

    def _placed(self, proc: Process) -> Process:
        """A process that is to be spawned, with its place on this host."""
        if proc.rank is not None:  # a new process: nothing goes from the old one's socket to it
            for client in self.clients.values():
                self._drop_rank(client, proc.rank)
            self.addresses.pop(proc.rank, None)
            if proc.address:
                self.addresses[proc.rank] = proc.address
        places = (proc.cwd, os.path.expanduser("~"))
        cwd = next(filter(os.path.isdir, places), str(self.folder.path))
        return replace(proc, cwd=cwd, env={**(self.env if proc.inherit else {}), **proc.env})

    def _mind_outbox(self, client: Client, fork: ForkServerClient) -> None:
        flags = zmq.POLLIN | (zmq.POLLOUT if fork.has_more else 0)
        self.poller.modify(fork.sock.fileno(), flags)

    def _from_fork(self, client: Client) -> None:
        assert client.fork is not None
        with contextlib.suppress(OSError):
            client.fork.flush()
        lines = client.fork.receive()
        if lines is None:
            self._post(client, [b"fork", line_of(Lost())])
            self._close_fork(client)
            return
        self._mind_outbox(client, client.fork)
        for line in lines:
            self._post(client, [b"fork", line])

    def _close_fork(self, client: Client) -> None:
        if client.fork is not None:
            self._unwatch(client.fork.sock.fileno())
            client.fork.sock.close()
            client.fork = None

    # ------------------------------------------------------------------ ranks

    def _open_rank(self, client: Client, rank: int) -> zmq.Socket[bytes]:
        sock = self.context.socket(zmq.DEALER)
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.SNDHWM, 0)
        sock.setsockopt(zmq.RCVHWM, RANK_HWM)
        sock.setsockopt(zmq.RECONNECT_IVL, 5)  # a rank that does not listen yet
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, 100)
        sock.connect(self.addresses.get(rank, f"ipc://{self.folder.path}/rank-{rank}.sock"))
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
                client.session.send([b"%d" % rank, *frames], time.monotonic())
        sock.close(0)

    # ------------------------------------------------------------------ the agent itself

    def _answer(self, client: Client, message: Mapping[str, Any], data: list[memoryview]) -> None:
        id, now = message["id"], time.monotonic()
        beside: Buffer = b""
        try:
            request = parsed(message)
            answer, beside = self._do(client, request, data[0] if data else b"", now)
            reply = Reply(id, answer)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            reply = Reply(id, error=f"{error.strerror or error}{where}")
        except (ValueError, KeyError, TypeError) as error:
            reply = Reply(id, error=f"{type(error).__name__}: {error}")
        self._reply(client, reply, *([beside] if beside else ()))

    def _do(
        self, client: Client, request: Request[Any], data: Buffer, now: float
    ) -> tuple[Any, Buffer]:
        """Do what a client asks for; returns the answer, and what goes beside it.

        Raises:
          OSError: it can't be done, or the path is not in the folder.
        """
        match request:
            case requests.Quit():
                self.end_for("it was asked to end")
                return None, b""
            case requests.Facts():
                return report.host_report(), b""
            case requests.Listen():
                return self.doors.open(request.address), b""
            case requests.Ways():  # the others wait for 2 s where nobody answers
                return connection_errors([(a, p) for a, p in request.to]), b""
            case requests.RelayFrames(path, host, port, key):
                Relay(str(self.folder.inside(path)), (host, port), key)
                return None, b""
            case requests.Mkdir(own=True):
                client.own.append(request.path)
        return requests.answer(self.folder, request, data)

    def _reply(self, client: Client, reply: Reply, *data: Buffer) -> None:
        self._post(client, [b"agent", encode_body(reply), *data])

    # ------------------------------------------------------------------ end

    def end(self) -> None:
        """Tell who is there, end all processes, leave no file. Does not return."""
        for client in list(self.clients.values()):
            self._reply(client, Reply(ending=self.why))
        if self.fork_server is not None:
            ends.let_go(self.fork_server, QUIT_S)
        ends.end_children(5)
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
        os._exit(self._status())

    def _status(self) -> int:
        """Its exit status. A Job makes another pod for one that is not 0; mpiexec ends all hosts.

        So it is 0 for an end that comes of others' ends, unless ``--signalled-status`` asks.
        """
        asked = int(self.options.signalled_status)
        if self.why.startswith("SIG"):
            return asked
        return int(self.has_failed or (self.is_cut_short and asked != 0))


def own_environment(host: Mapping[str, str]) -> dict[str, str]:
    """The environment of processes here."""
    return {name: value for name, value in host.items() if not name.startswith(JOB_PREFIXES)}


def anywhere_for(address: str) -> str:
    """Where to listen so that this host's address leads here: on its family's, any port."""
    return "tcp://[::]:*" if ":" in address else "tcp://0.0.0.0:*"


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
