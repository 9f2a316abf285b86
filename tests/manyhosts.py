"""Hundreds of hosts of one rank each, in one process: agents and ranks without jax.

    with ManyHosts(256) as hosts:
        cluster = jaxcluster.start(launcher="ssh", **hosts.options)

The notebook's side is the real one, with the real ssh launcher: its ``ssh`` is a script that prints
what the host's agent has said. The agents are ``hosts.agent.server``'s: their sockets, keys,
sessions and files. Only the fork server and the ranks are played here, around a real referee. The
ranks answer through the wire's own codec what real ones would, for cells of a few kinds that a
comment names:

    # launches 300      all of them make 300 launches
    # skipped by 17     all but rank 17 announce a launch
    # prints            each prints a line of its own
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import zmq

from jaxcluster import wire
from jaxcluster.agreement.messages import BASE, MAIN, End, Place, Program
from jaxcluster.agreement.referee import Referee
from jaxcluster.host.processes import allow_files
from jaxcluster.hosts.agent import folder as folders
from jaxcluster.hosts.agent import report, transport
from jaxcluster.hosts.agent.messages import LIMIT
from jaxcluster.hosts.agent.requests import Listen, RelayFrames, Ways
from jaxcluster.hosts.agent.server import LOOK_S, Agent, Client
from jaxcluster.supervision.processes import process_token
from jaxcluster.wire import forks
from jaxcluster.wire.ops import Operation

TICK_S = 0.05


# --------------------------------------------------------------------------- for tests


class ManyHosts:
    """Hosts of one rank each, on this machine, until the block ends.

    Args:
      num_hosts: how many; they are called ``h000`` and so on.
      broken: what ssh says of the hosts that can't be logged in to.
    """

    def __init__(self, num_hosts: int, broken: Mapping[int, str] | None = None) -> None:
        self.num_hosts = num_hosts
        self.broken = broken or {}

    def __enter__(self) -> ManyHosts:
        self.folder = Path(tempfile.mkdtemp(prefix="jcmany", dir="/tmp"))
        self.ssh = self.folder / "ssh"
        self.ssh.write_text(_SSH.format(folder=self.folder))
        self.ssh.chmod(0o700)
        for number, said in self.broken.items():
            (self.folder / f"{name_of(number)}.broken").write_text(said)
        argv = [sys.executable, str(Path(__file__).resolve())]
        self._process = subprocess.Popen(
            [*argv, "--hosts", str(self.num_hosts), "--folder", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.__exit__()
            raise RuntimeError("the hosts did not come up")
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Of the process that plays them."""
        return self._process.pid

    @property
    def options(self) -> dict[str, Any]:
        """What a start takes."""
        last = name_of(self.num_hosts - 1)[1:]
        hosts = f"h[000-{last}]:1" if self.num_hosts > 1 else "h000:1"
        return {"launcher": "ssh", "hosts": hosts, "ssh": str(self.ssh), "direct": True}


def name_of(number: int) -> str:
    return f"h{number:03d}"


# -G asks the real ssh, where there is one: what it costs is a part of a start.
_SSH = """\
#!/bin/sh
for word; do
  [ "$word" = -G ] && {{ command -v ssh >/dev/null && exec ssh "$@"; exit 0; }}
  [ "$before" = -- ] && [ -z "$host" ] && host=$word
  before=$word
done
[ -e {folder}/$host.broken ] && {{ cat {folder}/$host.broken >&2; exit 255; }}
cat {folder}/$host.json
read -r nothing
exit 0
"""


# --------------------------------------------------------------------------- the ranks

Send = Callable[[str, Any], None]  # an operation and its body, in answer to a request


@dataclass
class Rank:
    """One rank, the cells that it has, and which of them it is in."""

    number: int
    host: str
    pid: int = 0
    has: dict[int, tuple[wire.CellRequest, Send]] = field(default_factory=dict)  # by seq
    seq: int = 0  # of the cell that it is in; 0: it is idle
    left: int = 0  # launches that it makes yet


class Ranks:
    """All ranks of the cluster, and their referee. What each is asked, it answers at once."""

    def __init__(self, num_ranks: int) -> None:
        self.ranks = {n: Rank(n, name_of(n)) for n in range(num_ranks)}
        self.referee = Referee(num_ranks)
        self.todo = deque[tuple[Any, ...]]()  # what the referee has said
        self.lanes = {
            (rank, name): self.referee.hello(rank, name, 0, functools.partial(self.tell, rank))
            for rank in self.ranks
            for name in (MAIN, BASE)
        }
        self.everybody = tuple(range(num_ranks))
        self.programs: dict[str, Program] = {}

    def spawn(self, number: int, pid: int) -> None:
        """A new process, on a new cluster if it is the first one."""
        if number == 0:
            self.__init__(len(self.ranks))  # type: ignore[misc]
        self.ranks[number].pid = pid

    def ask(self, number: int, op: str, body: Any, send: Send) -> Any:
        """What a rank answers; None where ``send`` is called later, or has been."""
        rank = self.ranks[number]
        match op:
            case "facts":
                return wire.EngineFacts(number, rank.pid, rank.host, f"key {rank.host}", "0.12.0")
            case "variables":
                return {}
            case "initialize":
                return wire.InitializeReply([wire.DeviceInfo(number, "cpu", "cpu", 0)])
            case "serve" | "state":
                return self.state(rank)
            case "cell":
                cell = wire.parse(wire.CellRequest, body)
                rank.has[cell.seq] = cell, send
                self.referee.arrive(self.lanes[number, BASE], cell.turn)
                self.answer()
                return None
            case "look":
                return self.referee.look(time.monotonic(), body["launches"])
            case "resources":
                return wire.RankResources(1.0, 200 << 20)
        send("error", {"ename": "ValueError", "message": f"no {op!r} here", "hint": ""})
        return None

    def state(self, rank: Rank) -> wire.RankState:
        state = wire.RankState(rank.number, "idle")
        if not rank.seq:
            return state
        cell, _ = rank.has[rank.seq]
        number = cell.execution_count
        return replace(state, state="running", seq=rank.seq, cell=number, line=2, seconds=1.0)

    def tell(self, number: int, *told: Any) -> None:
        self.todo.append((self.ranks[number], *told))

    def answer(self) -> None:
        """What the ranks do when the referee has said something."""
        while self.todo:
            rank, *told = self.todo.popleft()
            match told:
                case "run", seq:
                    self.begin(rank, seq)
                case "go", _:
                    self.launch(rank)
                case "refuse", why:
                    self.end(rank, "refused", wire.ErrorInfo("Divergence", why.kind, [], 2))
                case "skip", seq, why:
                    _, send = rank.has.pop(seq)
                    send("reply", wire.CellReply(rank.number, seq, "skipped", 0.0, skipped=why))
                case "closed", seq, why, True if seq in rank.has:
                    rank.has[seq][1]("closed", wire.Closed(seq, why))
                case "over", seq, why, tells:
                    _, send = rank.has.pop(seq)
                    if tells:
                        send("over", wire.Over(seq, why))

    def begin(self, rank: Rank, seq: int) -> None:
        cell, send = rank.has[seq]
        rank.seq = seq
        if "# prints" in cell.source:
            content = {"name": "stdout", "text": f"rank {rank.number} prints\n"}
            send("output", wire.RankOutput(rank.number, seq, "stream", content))
        found = re.search(r"# launches (\d+)", cell.source)
        rank.left = int(found[1]) if found else 0
        found = re.search(r"# skipped by (\d+)", cell.source)
        if found and rank.number != int(found[1]):
            rank.left = 1
        self.launch(rank)

    def launch(self, rank: Rank) -> None:
        """Announce the next launch of its cell, or end it."""
        if not rank.left:
            self.end(rank, "ok")
            return
        rank.left -= 1
        cell, _ = rank.has[rank.seq]
        fingerprint = zlib.crc32(cell.source.encode())
        program = Program(self.everybody, fingerprint, "jit_sum", "float32[8]")
        program = self.programs.setdefault(cell.source, program)
        place = Place(cell.execution_count, 2, cell.source.splitlines()[-1])
        now = time.monotonic()
        self.referee.launch(self.lanes[rank.number, MAIN], program, place=place, now=now)

    def end(self, rank: Rank, status: str, info: wire.ErrorInfo | None = None) -> None:
        seq, rank.seq = rank.seq, 0
        _, send = rank.has[seq]
        send("reply", wire.CellReply(rank.number, seq, status, 0.001, info))
        self.referee.end(self.lanes[rank.number, MAIN], End("ok" if status == "ok" else "error"))

    def tick(self) -> None:
        if self.referee.patience_s:
            self.referee.tick()
            self.answer()


# --------------------------------------------------------------------------- the agents


class LightAgent(Agent):
    """An agent whose fork server and ranks are played."""

    pids = itertools.count(1_000_000)

    def __init__(self, number: int, house: House) -> None:
        options = argparse.Namespace(lease=20.0, first_lease=60.0, limit=LIMIT, bind="", owner="")
        family: Any = SimpleNamespace(reap_others=lambda: None, exits=[], members={})
        super().__init__(options, folders.make(house.folder, house.folder), family)
        self.number, self.house = number, house
        keys = transport.new_keys()
        router, endpoint = transport.open_router(house.context, "tcp://127.0.0.1:*", keys)
        self.listen(router)
        said = {**vars(house.said), "host": name_of(number), "host_key": f"key {number}"}
        self.said = {
            "jaxcluster-agent": 1,
            "endpoint": endpoint,
            "key": keys.public,
            "token": process_token(os.getpid()),
            "folder": str(self.folder.path),
            "memory": str(self.folder.memory),
            **said,
            "address": f"10.0.{number >> 8}.{number & 255}",
        }

    def end_for(self, why: str) -> None:
        """Told to: it stays, for another cluster's start, and forgets this one."""
        self.why = ""

    def _dispatch(self, client: Client, to: bytes, frames: list[Any]) -> None:
        if not to.isdigit():
            super()._dispatch(client, to, frames)
            return
        asked = wire.decode(frames[0].buffer)
        number, id = int(to), asked["id"]

        def send(op: str, body: Any) -> None:
            if self.clients.get(client.name) is client:
                self._post(client, [to, wire.encode(op, id, body)])

        if (body := self.house.ranks.ask(number, asked["op"], asked.get("body"), send)) is not None:
            send("reply", body)

    async def _do(self, client: Client, request: Operation[Any], data: list[memoryview]) -> Any:
        match request:
            case RelayFrames():  # its ranks ask the referee themselves
                return None, b""
            case Listen(address):
                return int(bool(address)), b""
            case Ways(to):
                return [(self.said["address"], "") for _ in to], b""
            case forks.Spawn(procs):
                return [self._spawn(proc) for proc in procs], b""
            case forks.Kill() | forks.Signal() | forks.Stop() | forks.Preload():
                return None, b""
        return await super()._do(client, request, data)

    def _spawn(self, proc: forks.Process) -> int:
        pid = next(self.pids)
        Path(proc.log).touch()
        if (number := proc.rank) is not None:
            self.house.ranks.spawn(number, pid)
        elif proc.role == "coordinator":
            Path(proc.log).write_text("ports: 1 2\n")
        elif proc.role == "controller":
            for kind in ("engine", "client"):
                name = f"ipcontroller-{kind}.json"
                Path(proc.about["folder"], "security", name).write_text('{"key": "none"}')
        return pid


class AnyKey(transport.Authenticator):
    """Lets everybody in: who starts the agents does not know the owner's key yet."""

    def accepts(self, keys: Sequence[bytes]) -> bool:
        return True


class House:
    """All agents, on one thread."""

    def __init__(self, num_hosts: int, folder: Path) -> None:
        self.folder = folder / "agents"
        self.folder.mkdir()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self.context.set(zmq.MAX_SOCKETS, 4 * num_hosts + 64)
        authenticator = AnyKey(self.context, "00" * 32)
        transport.Listener(authenticator.socket, authenticator.answer)
        self.ranks = Ranks(num_hosts)
        self.said = report.host_report()
        self.agents = [LightAgent(number, self) for number in range(num_hosts)]
        for agent in self.agents:
            (folder / f"{name_of(agent.number)}.json").write_text(json.dumps(agent.said) + "\n")

    async def serve(self) -> None:
        """Until standard input ends."""
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(0, over.set)
        looked = 0.0
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), TICK_S)
            self.ranks.tick()
            if (now := time.monotonic()) > looked + LOOK_S:
                looked = now
                for agent in self.agents:
                    agent.look_after(now)


async def play(options: argparse.Namespace) -> None:
    house = House(options.hosts, options.folder)
    print("ready", flush=True)
    await house.serve()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args(argv)
    allow_files()
    asyncio.run(play(options))
    os._exit(0)  # 256 sockets need no farewell


if __name__ == "__main__":
    main()
