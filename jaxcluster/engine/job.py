"""Agreement for a job of plain processes, which somebody else has started: ``jaxcluster.agree``.

The whole script is to the referee what a cell is in a notebook: the first refusal closes it on all
processes. The referee runs as a child of process 0. It is found through JAX's coordination service,
and so is its key. Processes on other hosts share a relay.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from types import FrameType, TracebackType
from typing import Any

from jaxcluster.agreement.cellqueue import CellSpec
from jaxcluster.agreement.client import Agreement
from jaxcluster.agreement.frames import KEY, receive, unpack
from jaxcluster.agreement.refusals import Refusal
from jaxcluster.agreement.words import explain
from jaxcluster.engine.given import Given
from jaxcluster.engine.places import Places
from jaxcluster.engine.private import coordination, hostvalues, launches, transfers
from jaxcluster.ranks import name_ranks

SWITCH_S = 0.0005  # as on a notebook's ranks: the wait for the GIL would be the latency
START_S = 300.0  # that other processes have to call ``agree``
LOOK_S = 0.5
LEAVE_S = 5.0  # that other processes have to end after a failure
STUCK_S = 10.0  # ... and this one's threads, such as Orbax's, which may wait for a dead process
POLL_S = 0.05
RAISE_S = 0.2  # that a launch has to raise why it is refused, or it is printed
ASKED, STALLED, LEAVING = "asked", "stalled", "leaving"  # why the referee is asked who waits
ERROR_CHARS = 200
LONGEST_FOLDER = 107 - len("/jaxcluster-agree-12345678/referee")  # of a Unix socket's path
_job: Job | None = None


class Job:
    """One process of the job.

    Args:
      rank: JAX's process id.
      stall_s: after how long a wait is told of unasked.
    """

    def __init__(self, rank: int, num_ranks: int, client: Any, stall_s: float) -> None:
        self._rank, self._num_ranks, self._client = rank, num_ranks, client
        self._stall_s = stall_s
        self._given = Given()
        script = getattr(sys.modules["__main__"], "__file__", None)
        places = Places({script: 1} if script else {})
        self.agreement = Agreement(rank, places.of, self._given.take, "script")
        self._base: socket.socket | None = None
        self._child: subprocess.Popen[str] | None = None
        self._is_over = self._has_failed = False
        self._outcome = ""
        self._over_at = 0.0
        self._all_over = threading.Event()  # or nothing more is launched
        self._connected: list[int] = []
        self._wake, self._woken = socket.socketpair()

    # ------------------------------------------------------------------ start

    def join(self, address: str) -> bool:
        """Begin the script together with all other processes. The main thread.

        Returns:
          False if this jax has moved a private name: launches are not checked.

        Raises:
          RuntimeError: other processes have not called ``agree``.
        """
        if not launches.announce_launches(self.agreement):
            return False
        self._base = self.agreement.connect(self._find_referee(address))
        self.agreement.watch_threads()
        self.agreement.guard_signals()
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))
        sys.setswitchinterval(SWITCH_S)
        hostvalues.hear_host_values(self._given)
        transfers.announce_transfers(self.agreement)
        spec = CellSpec(1, tuple(range(self._num_ranks)))
        self.agreement.tell("arrive", asdict(spec))
        self._base.settimeout(START_S)
        if not receive(self._base):
            raise RuntimeError(
                f"Not all processes have called jaxcluster.agree() in {START_S:g} s."
            )
        self._base.settimeout(None)
        self.agreement.begin(1)
        coordination.announce_waits(self.agreement)
        threading.Thread(target=self._watch, name="jaxcluster-agreement", daemon=True).start()
        signal.signal(signal.SIGUSR1, self._on_signal)
        self._wake.setblocking(False)
        if (others := signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)) != -1:
            signal.set_wakeup_fd(others)
        self._hear_errors()
        atexit.register(self._leave)
        return True

    def _find_referee(self, address: str) -> str:
        """The path of this host's way to the referee."""
        here = _host()
        self._tell(f"host/{self._rank}", here)
        if self._rank == 0:
            try:
                self._tell("referee", json.dumps(self._start_referee(address, here)))
            except Exception as error:  # the other processes wait for it, and raise as well
                self._tell("referee", json.dumps({"error": str(error)}))
                raise
        found = json.loads(self._ask("referee"))
        if "error" in found:
            raise RuntimeError(found["error"])
        if found["host"] == here:
            return str(found["path"])
        first = found["first"][here]
        if first == self._rank:
            host = address.rpartition(":")[0].strip("[]")
            path, _ = self._run("relay", [host, found["port"]], found["key"])
            self._tell(f"relay/{first}", path)
        return self._ask(f"relay/{first}")

    def _start_referee(self, address: str, here: str) -> dict[str, Any]:
        """Start it on process 0's host; returns how the processes find it."""
        hosts = [self._ask(f"host/{rank}") for rank in range(self._num_ranks)]
        first = {host: hosts.index(host) for host in hosts}
        key = secrets.token_hex(32)
        listens = [] if len(first) == 1 else [_listening(address)]
        path, port = self._run("referee", [str(self._num_ranks), *listens], key)
        return {"path": path, "host": here, "first": first, "port": port, "key": key}

    def _run(self, what: str, arguments: list[str], key: str) -> tuple[str, str]:
        """Start a child; returns the path that it listens on, and the line that it prints then."""
        folder = tempfile.gettempdir()
        if len(os.fsencode(folder)) > LONGEST_FOLDER:
            folder = "/tmp"
        path = os.path.join(tempfile.mkdtemp(prefix="jaxcluster-agree-", dir=folder), what)
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "jaxcluster.agreement", what, path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, KEY: key},
            start_new_session=True,  # Ctrl-C is for the script
        )
        assert self._child.stdout is not None
        line = self._child.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"The {what} of jaxcluster.agree() did not start.")
        return path, line

    def _tell(self, name: str, value: str) -> None:
        self._client.key_value_set(f"jaxcluster/agree/{name}", value)

    def _ask(self, name: str) -> str:
        path = f"jaxcluster/agree/{name}"
        return str(self._client.blocking_key_value_get(path, int(1000 * START_S)))

    # -------------------------------------------------------------------- end

    def _hear_errors(self) -> None:
        """Tell the others at once what ends this process."""
        original = sys.excepthook

        def excepthook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            text = " ".join(f"{kind.__name__}: {error}".split())
            self._end(text if len(text) <= ERROR_CHARS else text[:ERROR_CHARS] + "...")
            original(kind, error, trace)

        sys.excepthook = excepthook

    def _end(self, outcome: str) -> None:
        """The main thread makes no more launches."""
        if not self._is_over:
            self._is_over, self._over_at = True, time.monotonic()
            self._outcome = outcome
            self.agreement.end(outcome)

    def _leave(self) -> None:
        """At the end of the process, before JAX shuts down, which waits for all processes."""
        self._end("ok")
        self._all_over.wait()
        if not self._has_failed:
            return
        coordination.leave_without_others()
        deadline = time.monotonic() + LEAVE_S
        while self._rank == 0 and self._connected != [0] and time.monotonic() < deadline:
            self._look(LEAVING)  # without process 0 JAX aborts the others
            time.sleep(POLL_S)
        if self._outcome == "ok":  # others failed
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    # ------------------------------------------------------------------ watch

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(bytes([number]))  # if another library has taken the wakeup file

    def _watch(self) -> None:
        """A thread's loop: hears the referee, and the signal that asks who waits for whom."""
        assert self._base is not None
        told = 0.0  # when the wait began that was told of
        while True:
            ready, _, _ = select.select([self._base, self._woken], [], [], LOOK_S)
            if self._woken in ready and signal.SIGUSR1 in self._woken.recv(4096):
                self._look(ASKED)
            if self._base in ready:
                if not (frame := receive(self._base)):
                    self._all_over.set()
                    return
                self._hear(frame)
            if self._is_stuck():
                _say("Threads of this process do not end, so it is ended.")
                sys.stdout.flush()
                os._exit(1)
            since = self._waits_since()
            if since and since != told and time.monotonic() - since > self._stall_s:
                told = since
                self._look(STALLED)

    def _is_stuck(self) -> bool:
        """Whether the script has failed, and ended here long ago. Process 0 ends last."""
        patience_s = STUCK_S * (2 if self._rank == 0 else 1)
        is_over = self._has_failed and self._is_over
        return is_over and time.monotonic() - self._over_at > patience_s

    def _waits_since(self) -> float:
        """When the main thread announced the launch that it waits for; 0.0 if it doesn't."""
        record = self.agreement.begun.get(threading.main_thread().ident or 0)
        return record[2] if record is not None and record[-1] else 0.0

    def _look(self, why: str) -> None:
        self.agreement.tell("look", why, 0)

    def _hear(self, frame: bytes) -> None:
        match unpack(frame):
            case ["closed" | "over", _, refusal, _]:
                if refusal is not None and not self._has_failed:
                    self._has_failed = True
                    time.sleep(RAISE_S)
                    if not self.agreement.is_refused:
                        _say(explain(Refusal.parse(refusal), part="script"))
                self._all_over.set()
            case ["answer", why, found]:
                self._connected = found["connected"]
                first = min((wait["rank"] for wait in found["waits"]), default=None)
                if why == ASKED or (why == STALLED and first == self._rank):
                    _say(describe(found))


def describe(found: dict[str, Any]) -> str:
    """Who waits for whom, as the referee tells it: a line for each launch."""
    lines = dict[tuple[str, ...], list[int]]()
    for wait in found["waits"]:
        place = wait["place"]
        where = f"line {place['line']}   {place['text']}" if place["line"] else place["within"]
        missing = name_ranks(wait["missing"])
        since = f"{found['now'] - wait['since']:.0f} s"
        lines.setdefault((where, wait["name"], missing, since), []).append(wait["rank"])
    if not lines:
        return "No rank waits for another one."
    return "\n".join(
        f"{name_ranks(ranks)} {'wait' if len(ranks) > 1 else 'waits'} for {missing} since {since}:"
        f"   {where}   {name}"
        for (where, name, missing, since), ranks in lines.items()
    )


def agree(stall_s: float = 30.0) -> bool:
    """Have all processes of this job agree on each program before they launch it.

    Call it in the main thread of every process, after ``jax.distributed.initialize()`` and before
    the first computation. From then on a process that comes to launch another program, that ends
    early, raises or dies is a ``Divergence`` in the others, at the line of their launch. Nothing is
    launched then. ``SIGUSR1`` has a process print who waits for whom.

    Costs a round trip on this host for each launch of a program with a collective.

    Args:
      stall_s: after how many seconds of waiting a process prints this unasked.

    Returns:
      whether launches are checked: False for a single process, and where this jax is unknown.

    Raises:
      RuntimeError: JAX is not initialized, or not all processes have called this.
    """
    global _job
    if _job is not None or launches.is_announced():
        return True
    try:
        client, rank, num_ranks, address = coordination.job()
    except (ImportError, AttributeError):
        _say("Launches are not checked: this jax is not known.")
        return False
    if client is None:
        raise RuntimeError("Call jax.distributed.initialize() before jaxcluster.agree().")
    if num_ranks == 1:
        return False
    job = Job(rank, num_ranks, client, stall_s)
    if not job.join(address):
        _say("Launches are not checked: this jax is not known.")
        return False
    _job = job
    return True


def _host() -> str:
    """Equal for processes that can reach each other's Unix sockets."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    spaces = os.stat("/proc/self/ns/mnt").st_ino, os.stat("/proc/self/ns/net").st_ino
    return f"{boot} {spaces} {os.getuid()} {tempfile.gettempdir()}"


def _listening(address: str) -> str:
    """Where relays of other hosts reach the referee, which runs on the coordinator's host."""
    host = address.rpartition(":")[0].strip("[]")
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def _say(text: str) -> None:
    print(f"jaxcluster: {text}", file=sys.stderr, flush=True)
