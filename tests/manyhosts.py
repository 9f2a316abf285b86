"""Hundreds of hosts of one rank each, in one process: agents and ranks without jax.

    with ManyHosts(256) as hosts:
        cluster = jaxcluster.start(launcher="ssh", **hosts.options)

The notebook's side is the real one, with the real ssh launcher: its ``ssh`` is a script that prints
what the host's agent has said. The agents are ``agent.server``'s: their sockets, keys, sessions,
files and turns; only the fork server and the ranks below are played here. The ranks answer through
the wire's own codec what real ones would, for cells of a few kinds that a comment names:

    # launches 300      all of them make 300 launches
    # skipped by 17     all but rank 17 make a launch, and wait in it for rank 17
    # prints            each prints a line of its own
    # dies 17           rank 17's process ends
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zmq

from jaxcluster import wire
from jaxcluster.agent import folder as folders
from jaxcluster.agent import report, transport
from jaxcluster.agent.messages import LIMIT
from jaxcluster.agent.server import Agent, Client
from jaxcluster.host.processes import allow_files
from jaxcluster.supervision.processes import process_token
from jaxcluster.wire import forks
from jaxcluster.wire.ops.lockstep import Checked, Replayed
from jaxcluster.wire.ops.start import Reserved
from jaxcluster.wire.ops.state import UndoLooked
from jaxcluster.wire.requests import Reply, parsed

TICK_S = 0.05
FILE = "/tmp/ipykernel_jaxcluster/cell_{}.py"
JAX = "/site-packages/jax/_src/{}.py"
STACK = (("pjit", 250, "cache_miss"), ("pjit", 130, "_python_pjit_helper"), ("core", 500, "bind"))


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


@dataclass
class Rank:
    """One rank: its journal, and the cell that it is in."""

    number: int
    host: str
    pid: int = 0
    kinds: dict[wire.Launch, int] = field(default_factory=dict)  # as ``PollReply`` has them
    journal: list[list[int]] = field(default_factory=list)
    hash: int = 0
    seq: int = 0  # of the cell that it waits in; 0: it is idle
    cell: int | None = None
    ended: int = 0
    probes: int = 0
    answer: Callable[[wire.CellReply], None] | None = None  # to that cell
    is_interrupted: bool = False


class Ranks:
    """All ranks of the cluster. What each is asked, it answers at once, but for a collective."""

    def __init__(self, num_ranks: int) -> None:
        self.everybody = ",".join(map(str, range(num_ranks)))
        self.ranks = {n: Rank(n, name_of(n)) for n in range(num_ranks)}
        self.port = itertools.count(20_000)

    def ask(self, number: int, op: str, body: Any, send: Callable[..., None]) -> Any:
        """What a rank answers; None where ``send`` is called later, or has been."""
        rank = self.ranks[number]
        match op:
            case "facts":
                address = f"10.0.{number >> 8}.{number & 255}"
                host = rank.host
                key = f"key {host}"
                return wire.EngineFacts(number, rank.pid, host, key, address, "0.12.0")
            case "reserve":
                return Reserved(next(self.port), next(self.port), True)
            case "probe":
                return f"10.0.{number >> 8}.{number & 255}"
            case "reachability":
                return []
            case "initialize":
                asked = wire.parse(wire.InitializeRequest, body)
                device = wire.DeviceInfo(number, "cpu", "cpu", number, 0)
                n = asked.num_processes
                return wire.InitializeReply(number, n, n, [device], 0.1)
            case "serve" | "state":
                return self.state(rank)
            case "poll":
                return self.report(rank, body["launches"])
            case "cell":
                self.run(rank, wire.parse(wire.CellRequest, body), send)
                return None
            case "interrupt":
                rank.is_interrupted = rank.seq != 0
                return rank.is_interrupted
            case "replay":
                for fingerprint in body["fingerprints"]:
                    self.launch(rank, "jit_sum", fingerprint)
                send("reply", Replayed(len(body["fingerprints"]), self.launches(rank)))
                self.release()
                return None
            case "prepare_check":
                return [[[*self.ranks]]]
            case "self_check":
                return Checked(True, "", self.launches(rank))
            case "busy":
                return 0.0
            case "undo_look":
                return UndoLooked()
            case "undo":
                return []
            case "resources":
                return wire.RankResources(number, time.monotonic(), 1.0, 200 << 20)
            case "resume" | "strict" | "undo_limit":
                return 0
            case "undo_drop":
                return None
            case "variables":
                return []
        send("error", {"ename": "ValueError", "message": f"no {op!r} here", "hint": ""})
        return None

    def launches(self, rank: Rank) -> dict[str, list[int]]:
        return {self.everybody: [len(rank.journal), rank.hash]} if rank.journal else {}

    def state(self, rank: Rank) -> wire.RankState:
        rank.probes += 1
        idle = wire.RankState(
            rank.number,
            rank.pid,
            rank.host,
            "idle",
            [f"cpu:{rank.number}"],
            ended=rank.ended,
            taken=max(rank.ended, rank.seq),
            launches=self.launches(rank),
            rss_nbytes=200 << 20,
            probes=rank.probes,
        )
        if not rank.seq:
            return idle
        return replace(
            idle,
            state="running",
            seq=rank.seq,
            cell=rank.cell,
            line=2,
            frame=f"<module> ({FILE.format(rank.cell)}:2)",
            seconds=1.0,
        )

    def report(self, rank: Rank, launches: int) -> wire.PollReply:
        stack: list[list[Any]] = []
        if rank.seq:
            stack = [[FILE.format(rank.cell), 2, "<module>", "s = jnp.sum(x)", rank.cell, False]]
            stack += [[JAX.format(f), line, name, "", None, True] for f, line, name in STACK]
        made = rank.journal[-launches:] if launches else []
        return wire.PollReply(wire.RankReport(self.state(rank), stack, []), [*rank.kinds], made)

    def launch(self, rank: Rank, name: str, fingerprint: int, cell: int = 0, seq: int = 0) -> None:
        line = 2 if cell else None
        place = (self.everybody, name, fingerprint, cell or None, line, "f32[8]", seq)
        kind = rank.kinds.setdefault(wire.Launch(0, *place), len(rank.kinds))
        rank.journal.append([len(rank.journal), kind])
        rank.hash = wire.next_hash(rank.hash, fingerprint)

    def run(self, rank: Rank, cell: wire.CellRequest, send: Callable[..., None]) -> None:
        rank.seq, rank.cell, rank.is_interrupted = cell.seq, cell.execution_count, False
        rank.answer = lambda reply: send("reply", reply)
        if found := re.search(r"# launches (\d+)", cell.source):
            for _ in range(int(found[1])):
                self.launch(rank, "jit_step", 7, cell.execution_count, cell.seq)
        if "# prints" in cell.source:
            text = f"rank {rank.number} prints\n"
            output = wire.RankOutput(
                rank.number, cell.seq, "stream", {"name": "stdout", "text": text}
            )
            send("output", output)
        found = re.search(r"# skipped by (\d+)", cell.source)
        if found and rank.number != int(found[1]):
            fingerprint = zlib.crc32(cell.source.encode())
            self.launch(rank, "jit_sum", fingerprint, cell.execution_count, cell.seq)
            return self.release()  # waits in it
        self.end(rank, "ok")

    def release(self) -> None:
        """Those that wait in a launch leave it once all ranks have made it."""
        counts = {len(rank.journal) for rank in self.ranks.values()}
        if len(counts) == 1:
            for rank in self.ranks.values():
                if rank.seq:
                    self.end(rank, "interrupted" if rank.is_interrupted else "ok")

    def end(self, rank: Rank, status: str) -> None:
        answer, rank.answer = rank.answer, None
        rank.ended, seq, rank.seq = rank.seq, rank.seq, 0
        assert answer is not None
        answer(wire.CellReply(rank.number, seq, status, 0.001, launches=self.launches(rank)))


# --------------------------------------------------------------------------- the agents


class LightAgent(Agent):
    """An agent whose fork server and ranks are played."""

    pids = itertools.count(1_000_000)

    def __init__(self, number: int, house: House) -> None:
        options = argparse.Namespace(lease=20.0, first_lease=60.0, limit=LIMIT, bind="")
        super().__init__(options, folders.make(house.folder, house.folder))
        self.number, self.house = number, house
        keys = transport.new_keys()
        self.router, endpoint = transport.open_router(house.context, "tcp://127.0.0.1:*", keys)
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

    def tick(self, now: float) -> None:
        for client in self.clients.values():
            client.session.tick(now)
            self._transmit(client)

    def acknowledge(self) -> None:
        """As real ones do each second, needed or not."""
        for client in self.clients.values():
            client.session.acknowledge()
            self._transmit(client)

    def end_for(self, why: str) -> None:
        """Told to: it stays, for another cluster's start, and forgets this one."""
        self.why = ""

    def _dispatch(self, client: Client, to: bytes, frames: Any) -> None:
        if not to.isdigit():
            super()._dispatch(client, to, frames)
            return
        asked = wire.decode(frames[0].buffer)
        number, id = int(to), asked["id"]

        def send(op: str, body: Any) -> None:
            if self.clients.get(client.name) is client:
                self._post(client, [to, wire.encode(op, id, body)])

        if asked["op"] == "cell" and f"# dies {number}" in asked["body"]["source"]:
            self._post(client, [b"fork", forks.line_of(forks.Exit("rank", number, -9))])
            return
        if (body := self.house.ranks.ask(number, asked["op"], asked.get("body"), send)) is not None:
            send("reply", body)

    def _to_fork(self, client: Client, line: bytes) -> None:
        message = json.loads(line)
        command, answer = parsed(message), None
        if isinstance(command, forks.Spawn):
            answer = [self._spawn(proc) for proc in command.procs]
        self._post(client, [b"fork", forks.line_of(Reply(message["id"], answer))])

    def _spawn(self, proc: forks.Process) -> int:
        pid = next(self.pids)
        Path(proc.log).touch()
        if (number := proc.rank) is not None:
            self.house.ranks.ranks[number] = Rank(number, name_of(number), pid)
        elif proc.role == "controller":
            words = dict(word.partition("=")[::2] for word in proc.argv)
            for kind in ("engine", "client"):
                name = f"ipcontroller-{kind}.json"
                Path(words["--profile-dir"], "security", name).write_text('{"key": "none"}')
        return pid


class AnyKey(transport.Authenticator):
    """Lets everybody in: who starts the agents does not know the owner's key yet."""

    def _who(self, key: bytes, domain: bytes) -> bytes:
        return b"owner"


class House:
    """All agents, on one thread."""

    def __init__(self, num_hosts: int, folder: Path) -> None:
        self.folder = folder / "agents"
        self.folder.mkdir()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self.context.set(zmq.MAX_SOCKETS, 4 * num_hosts + 64)
        self.authenticator = AnyKey(self.context, "00" * 32)
        self.ranks = Ranks(num_hosts)
        self.said = report.host_report()
        self.agents = [LightAgent(number, self) for number in range(num_hosts)]
        for agent in self.agents:
            (folder / f"{name_of(agent.number)}.json").write_text(json.dumps(agent.said) + "\n")

    def serve(self) -> None:
        """Until standard input ends."""
        poller = zmq.Poller()
        poller.register(0, zmq.POLLIN)
        poller.register(self.authenticator.socket, zmq.POLLIN)
        by_socket: dict[Any, LightAgent] = {agent.router: agent for agent in self.agents}
        for agent in self.agents:
            poller.register(agent.router, zmq.POLLIN)
        ticked = told = time.monotonic()
        while True:
            for source, _ in poller.poll(int(TICK_S * 1000)):
                if source == 0:
                    return
                if source == self.authenticator.socket:
                    self.authenticator.answer()
                else:
                    by_socket[source]._receive()
            now = time.monotonic()
            if now > ticked + TICK_S:
                ticked = now
                for agent in self.agents:
                    agent.tick(now)
            if now > told + 1.0:
                told = now
                for agent in self.agents:
                    agent.acknowledge()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args(argv)
    allow_files()
    house = House(options.hosts, options.folder)
    print("ready", flush=True)
    house.serve()
    os._exit(0)  # 256 sockets need no farewell


if __name__ == "__main__":
    main()
