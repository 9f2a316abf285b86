"""An agent on real processes: the way to ranks through it, cut links, ends that leave nothing."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import GONE_S, Home, processes_with, until
from proxy import Proxy, wait

from jaxcluster import wire
from jaxcluster.errors import LaunchError
from jaxcluster.hosts.agent import requests
from jaxcluster.hosts.agent.client import Agents, Connection, State
from jaxcluster.hosts.agent.transport import Keys, new_keys
from jaxcluster.wire import forks

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.one_machine("agents and their ranks are this machine's"),
]

ANSWER_S = 60.0


def python_path() -> str:
    checkout = str(Path(__file__).parents[2])
    return os.pathsep.join([checkout, os.environ.get("PYTHONPATH", "")])


# The fork server imports nothing, and ranks do nothing.
LIGHT = {"PYTHONPATH": f"{Path(__file__).parents[1] / 'lightranks'}:{python_path()}"}


class Running:
    """An agent that is this test's child, and what it has printed."""

    def __init__(
        self, home: Home, env: Mapping[str, str], *options: str, keys: Keys | None = None
    ) -> None:
        self.keys = keys or new_keys()
        self.mark = uuid.uuid4().hex
        argv = [
            sys.executable,
            "-P",
            "-m",
            "jaxcluster.hosts.agent",
            "--owner-key",
            self.keys.public,
        ]
        argv += ["--bind=tcp://127.0.0.1:*", *options]
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**home.environ(PYTHONPATH=python_path(), **{MARK: self.mark}), **env},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if b'"endpoint"' not in line:
            self.close()
            raise AssertionError(f"no agent: {line!r}, code {self.process.returncode}")
        self.said = json.loads(line)

    @property
    def folder(self) -> Path:
        return Path(self.said["folder"])

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.said["endpoint"].partition("://")[2].rpartition(":")
        return host, int(port)

    def processes(self) -> dict[int, str]:
        """The agent and all that it has started."""
        return processes_with(MARK, self.mark)

    def until_gone(self, deadline_s: float = GONE_S) -> dict[str, Any]:
        """Wait for its end, and that nothing is left of it; returns its last line."""
        until(lambda: self.process.poll() is not None, "the agent ends", deadline_s)
        until(lambda: not self.processes(), f"its processes end: {self.processes()}", deadline_s)
        until(lambda: not self.folder.exists(), f"{self.folder} is removed", deadline_s)
        until(lambda: not os.path.exists(self.said["memory"]), "memory is removed", deadline_s)
        assert self.process.stdout is not None
        lines = self.process.stdout.read().splitlines()
        return json.loads(lines[-1]) if lines else {}

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            if not pipe.closed:
                pipe.close()
        self.process.wait(GONE_S)


MARK = "JAXCLUSTER_TEST_AGENT"
RunAgent = Callable[..., Running]
Connect = Callable[..., Connection]


@pytest.fixture
def run_agent(private_home: Home) -> Iterator[RunAgent]:
    """Starts agents that end with the test."""
    started: list[Running] = []

    def start(env: Mapping[str, str], *options: str, **more: Any) -> Running:
        started.append(Running(private_home, env, *options, **more))
        return started[-1]

    yield start
    for running in started:
        running.close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects to agents, each with a thread of its own; they are left after the test."""
    made: list[Agents] = []

    def connect(running: Running, endpoint: str = "", **options: Any) -> Connection:
        made.append(Agents(options.pop("keys", running.keys)))
        to = endpoint or running.said["endpoint"]
        host = Connection(made[-1], to, running.said["key"], "h1")
        host.open()
        return host

    yield connect
    for agents in made:
        agents.close()


@pytest.fixture
def proxied(run_agent: RunAgent) -> Iterator[tuple[Running, Proxy]]:
    running = run_agent(LIGHT)
    proxy = Proxy(*running.address)
    yield running, proxy
    proxy.close()


def spawn_rank(running: Running, host: Connection, rank: int = 0, **more: Any) -> int:
    folder = running.folder
    (folder / forks.RANKS).mkdir(exist_ok=True)
    about = {"rank": rank, "folder": str(folder)}
    proc = forks.Process("rank", more, "/nowhere", f"{folder}/rank-{rank}.log", about)
    return host.ask(forks.Spawn([proc]), ANSWER_S)[0]


class Messages(wire.Inbox[Sequence[Any]]):
    """What a rank has sent, as it came."""

    def next(self, deadline_s: float = ANSWER_S) -> tuple[dict[str, Any], list[bytes]]:
        envelope, *buffers = self.get(timeout=deadline_s)
        return wire.decode(envelope.buffer), [bytes(b.buffer) for b in buffers]


# --------------------------------------------------------------------------- ranks


def umask(pid: int) -> str:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("Umask"))


def test_ranks_are_spawned_and_answer_through_an_agent_and_nothing_is_left(
    run_agent: RunAgent, connect: Connect
) -> None:
    running = run_agent({})
    host = connect(running)
    events: wire.Inbox[forks.Event] = wire.Inbox()
    host.on_event = events.put
    first = spawn_rank(running, host)
    assert umask(running.process.pid) == "0077"  # ranks write files as the user does
    assert umask(first) == umask(os.getpid()) != "0077"
    came = Messages()
    rank = host.rank(0, came.put)
    rank.send([wire.encode("facts", "a")])
    reply, _ = came.next()
    assert (reply["op"], reply["id"], reply["body"]["pid"]) == ("reply", "a", first)
    # Values: the largest frame that comes back whole is what an error says of it.
    rank.send([wire.encode("no such", "b"), b"\0" * 3_000_000])
    assert came.next()[0]["body"]["message"] == "this rank can't answer a 'no such' request yet"

    # A new process in the rank's place: the way leads to it, and only to it.
    host.ask(forks.Kill(first))
    exit = events.get(timeout=ANSWER_S)
    assert isinstance(exit, forks.Exit) and (exit.rank, exit.code) == (0, -9)
    rank.send([wire.encode("facts", "for the dead one")])
    second = spawn_rank(running, host)
    rank.send([wire.encode("facts", "c")])
    reply, _ = came.next()
    assert (reply["id"], reply["body"]["pid"]) == ("c", second)

    # A second notebook gets its own answers alone, and hears of exits too.
    other = connect(running)
    theirs = Messages()
    other.rank(0, theirs.put).send([wire.encode("facts", "d")])
    assert theirs.next()[0]["id"] == "d"
    assert came.empty()
    told: list[forks.Event] = []
    other.on_event = told.append
    other.ask(forks.Exits())
    assert told == []  # an end that was asked for is none of them

    assert "rank-0.log" in os.listdir(running.folder)
    host.ask(requests.Quit())
    until(lambda: host.state is State.ENDED, "the notebook hears of it")
    until(lambda: other.state is State.ENDED, "the other one too")
    assert "asked to end" in host.why
    assert "asked to end" in running.until_gone()["jaxcluster-agent-ended"]


@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGHUP])
def test_an_agent_heeds_the_signals_that_end_it_and_is_no_task_of_a_job_to_its_ranks(
    run_agent: RunAgent,
    connect: Connect,
    ends: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")  # JAX would take it for the rank's own
    running = run_agent(LIGHT, "--signalled-status=143")
    host = connect(running)
    host.ask(requests.Facts())
    (server,) = [p for p, line in running.processes().items() if "hosts.forkserver" in line]
    mine, its = (Path(f"/proc/{p}/environ").read_bytes() for p in (running.process.pid, server))
    assert b"SLURM_PROCID=3" in mine and b"SLURM_PROCID" not in its
    running.process.send_signal(signal.SIGINT)  # at the terminal, it is the notebook's
    assert host.ask(requests.Facts()).host
    running.process.send_signal(ends)
    assert running.until_gone()["jaxcluster-agent-ended"] == ends.name
    assert running.process.returncode == 143


def has_sleeper(running: Running) -> bool:
    return any(line.startswith("sleep") for line in running.processes().values())


def test_the_end_of_all_ranks_is_that_of_users_processes_in_sessions_of_their_own(
    run_agent: RunAgent, connect: Connect
) -> None:
    """They may hold a GPU's memory, and the agent goes on to the next ranks."""
    running = run_agent(LIGHT)
    host = connect(running)
    for _ in range(2):
        spawn_rank(running, host)
        until(lambda: has_sleeper(running), "it is there")
        host.ask(forks.Stop())
        until(lambda: not has_sleeper(running), "it has ended")


@pytest.mark.parametrize("how", ["killed", "killed in its end", "stdin"])
def test_an_agents_end_is_the_end_of_all_that_it_has_started(
    run_agent: RunAgent, connect: Connect, tmp_path: Path, how: str
) -> None:
    """Users' processes in sessions of their own too."""
    path = tmp_path / "a.sock"
    running = run_agent(LIGHT, "--owner-stdin", f"--bind=ipc://{path}")
    host = connect(running)
    spawn_rank(running, host)
    until(lambda: has_sleeper(running), "it is there")
    (running.folder / "left.txt").write_text("x")
    Path(running.said["memory"], "left.txt").write_text("x")
    if "killed" in how:
        if how != "killed":
            running.process.terminate()
            until(lambda: not any("forkserver" in p for p in running.processes().values()), "it")
        running.process.kill()
        running.until_gone()
        assert not path.exists()
        return
    assert running.process.stdin is not None
    running.process.stdin.close()
    line = running.until_gone()
    assert line["jaxcluster-agent-ended"] == "its standard input has ended"
    until(lambda: host.state is State.ENDED, "the notebook hears of it")
    with pytest.raises(LaunchError, match=r"Host h1 is lost: its agent has ended because its"):
        host.ask(requests.Facts())
    assert running.process.returncode == 0  # mpiexec would end all hosts


def test_an_agent_ends_when_its_lease_is_over(run_agent: RunAgent, connect: Connect) -> None:
    running = run_agent(LIGHT, "--lease=1")
    host = connect(running)
    host.ask(requests.Facts())
    wait(2.5)
    host.ask(requests.Facts())  # who is there need not say anything
    ctypes.PyDLL(None).usleep(3_500_000)  # nor let a thread run: the interpreter's lock is held
    assert host.ask(requests.Facts()).host
    host.close()
    assert "its owner has not been connected" in running.until_gone(20)["jaxcluster-agent-ended"]


# --------------------------------------------------------------------------- fence


def test_a_new_agent_of_the_same_id_first_ends_the_older_one(run_agent: RunAgent) -> None:
    old = run_agent(LIGHT, "--id=one/1")
    run_agent(LIGHT, "--id=one/1", "--fence")
    assert "SIGTERM" in old.until_gone()["jaxcluster-agent-ended"]


def test_it_ends_at_once_while_its_fork_server_does_not_hear_yet(
    run_agent: RunAgent, tmp_path: Path
) -> None:
    """Slurm and mpiexec kill what does not end soon, with its folders still there."""
    forks = 'any("forkserver" in word for word in sys.orig_argv)'
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys, time\nif {forks}:\n    time.sleep(1000)\n"
    )
    running = run_agent({"PYTHONPATH": f"{tmp_path}:{python_path()}"}, "--owner-stdin")
    running.process.terminate()
    assert running.until_gone()["jaxcluster-agent-ended"].startswith("SIGTERM")


# --------------------------------------------------------------------------- links that are cut

LINES = 12_000

# A rank's own socket, of a rank that does nothing but print.
PRINTER = """
import sys, time
from jaxcluster.rank.control import ControlChannel
control = ControlChannel("ipc://" + sys.argv[1])
def stream(request):
    for k in range(request.body["lines"]):
        text = f"line {k} " + "x" * request.body["more"] + "\\n"
        control.stream(request, 0, 1, "stdout", text)
        printed[0] = k + 1
        if k % 100 == 0: time.sleep(request.body["pause_s"])
    return "printed"
printed = [0]
control.handlers["stream"] = "side", stream
control.handlers["printed"] = "now", lambda request: printed[0]
control.start()
sys.stdin.read()
"""


@pytest.fixture
def printer(private_home: Home) -> Iterator[Callable[[Running], psutil.Process]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(running: Running) -> psutil.Process:
        path = running.folder / forks.RANKS / "0.sock"
        path.parent.mkdir(exist_ok=True)
        argv = [sys.executable, "-c", PRINTER, str(path)]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, env=private_home.environ())
        started.append(process)
        until(path.exists, "it listens")
        return psutil.Process(process.pid)

    yield start
    for process in started:
        process.communicate(timeout=GONE_S)


def numbers(messages: Messages) -> list[int]:
    """The lines that have come, up to the reply."""
    found: list[int] = []
    while (envelope := messages.next()[0])["op"] != "reply":
        text = envelope["body"]["content"]["text"]
        found += map(int, re.findall(r"line (\d+)", text))
    return found


@pytest.mark.parametrize("silently", [False, True], ids=["reset", "what is sent is lost first"])
def test_what_a_rank_prints_while_the_link_is_cut_comes_once_and_in_order(
    proxied: tuple[Running, Proxy],
    connect: Connect,
    printer: Callable[[Running], psutil.Process],
    silently: bool,
) -> None:
    running, proxy = proxied
    printer(running)
    host = connect(running, proxy.endpoint)
    came = Messages()
    rank = host.rank(0, came.put)
    rank.send([wire.encode("stream", "s", {"lines": LINES, "more": 50, "pause_s": 0.03})])
    began = came.next()[0]["body"]["content"]["text"]
    for _ in range(3):
        if silently:
            proxy.delivers.clear()
            until(lambda: proxy.lost, "something is lost")
            wait(0.3)
            proxy.lost = 0
        proxy.cut()
        until(lambda: host.state is State.CUT, "the notebook sees the cut")
        wait(0.4)
        proxy.mend()
        host.ask(
            requests.Facts(), timeout_s=ANSWER_S
        )  # asked while it is cut or not: it is answered
    first = [int(n) for n in re.findall(r"line (\d+)", began)]
    assert first + numbers(came) == list(range(LINES))


def test_a_notebook_that_was_away_for_too_long_is_told_and_nothing_of_old_is_done(
    run_agent: RunAgent, connect: Connect
) -> None:
    """Another one has kept the agent alive. What was sent meanwhile may make no sense by now."""
    running = run_agent(LIGHT, "--lease=1")
    proxy = Proxy(*running.address)
    try:
        stays = connect(running)
        stays.ask(requests.Facts())
        host = connect(running, proxy.endpoint)
        host.ask(requests.Facts())
        proxy.cut()
        until(lambda: host.state is State.CUT, "the notebook sees the cut")
        host.begin(requests.Mkdir("old"))
        wait(3.5)
        proxy.mend()
        until(lambda: host.state is State.ENDED, "the notebook is told")
        assert "given up waiting" in host.why
        assert not (running.folder / "old").exists()
        stays.ask(requests.Facts())
    finally:
        proxy.close()


def test_a_rank_that_prints_faster_than_the_link_carries_is_slowed(
    run_agent: RunAgent,
    connect: Connect,
    printer: Callable[[Running], psutil.Process],
) -> None:
    limit = 4 << 20
    running = run_agent(LIGHT, f"--limit={limit}")
    proxy = Proxy(*running.address)
    try:
        rank_process = printer(running)
        agent_process = psutil.Process(running.process.pid)
        host, other = connect(running, proxy.endpoint), connect(running)
        came, theirs = Messages(), Messages()
        rank, beside = host.rank(0, came.put), other.rank(0, theirs.put)
        before = [p.memory_info().rss for p in (rank_process, agent_process)]
        lines, more = 2_000, 100_000  # 200 MB
        host.ask(requests.Facts())
        proxy.reads.clear()
        rank.send([wire.encode("stream", "s", {"lines": lines, "more": more, "pause_s": 0})])

        def printed() -> int:
            beside.send([wire.encode("printed", "p")])
            return int(theirs.next()[0]["body"])  # the other notebook's way is not held up

        seen = [-1, printed()]
        end = time.monotonic() + ANSWER_S
        while (seen[-1] != seen[-2] or seen[-1] == 0) and time.monotonic() < end:
            wait(0.5)
            seen.append(printed())
        assert seen[-1] < lines, "it has waited for nobody"
        grown = [
            p.memory_info().rss - b
            for p, b in zip((rank_process, agent_process), before, strict=True)
        ]
        assert max(grown) < 150 << 20, grown
        used_s = sum(agent_process.cpu_times()[:2])
        wait(1.0)
        assert sum(agent_process.cpu_times()[:2]) < used_s + 0.15, (
            "it looks at the rank all the time"
        )
        proxy.reads.set()
        assert numbers(came) == list(range(lines))
    finally:
        proxy.close()


# --------------------------------------------------------------------------- strangers


def test_strangers_are_not_let_in_and_the_owner_goes_on(
    run_agent: RunAgent, connect: Connect
) -> None:
    running = run_agent(LIGHT, "--lease=3")
    foreign = connect(running, keys=new_keys())
    until(lambda: foreign.state is State.REFUSED, "it is refused")
    with pytest.raises(LaunchError, match="does not accept this notebook's key"):
        foreign.ask(requests.Quit(), timeout_s=0.2)
    host = connect(running)
    host.ask(requests.Facts())
    host.close()
    # A stranger that tries again and again is nobody who is there.
    assert "its owner has not been connected" in running.until_gone(30)["jaxcluster-agent-ended"]
