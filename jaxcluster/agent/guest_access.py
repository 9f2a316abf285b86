"""Lets a notebook of another machine in to the agents: ``python -m jaxcluster.agent.guest_access``.

Whoever can run this on a host, as the user of its agents, may come in: it is run over that user's
own ssh, and does what only he can do in the agents' folders, whose mode is 0700.

    visit --list                    prints the records of the clusters that have an agent here
    visit --agent FOLDER --key KEY  lets in the public key KEY to that agent for as long as this
                                    process lives, says where the agent is, and ends with its input

A record is what the cluster's owner has put beside each of its agents (``RECORD``); it holds no
key but the agents' public ones. A key that is let in is in a file in the agent's folder with
the process that has brought it; the agent looks there when it is asked to let somebody in.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxcluster.agent import folder as folders
from jaxcluster.errors import JaxClusterError
from jaxcluster.supervision.loop import LOOK_S, SupervisionLoop
from jaxcluster.supervision.processes import is_alive, pid_space, process_token

RECORD = "ranks/cluster.json"  # in an agent's folder; it goes with its generation of ranks
GUESTS = "guests"
LINE = "jaxcluster-clusters"


def is_guest(folder: Path, key: str) -> bool:
    """Whether a public key is one that a process of this user's, which still lives, has brought."""
    try:
        return is_alive((folder / GUESTS / key).read_text())
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def let_in(folder: Path, key: str) -> Iterator[None]:
    """Have a public key let in to the agent in ``folder`` for as long as this lasts.

    Raises:
      OSError: the folder is not there.
    """
    path = folder / GUESTS / key
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_text(process_token(os.getpid()))
    draft.rename(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def records(place: Path) -> list[tuple[str, Any]]:
    """(the agent's folder, its cluster's record) for each agent of this user's in ``place``."""
    found = []
    for path, agent in folders.records(place):
        if agent.pid_space == pid_space() and is_alive(agent.token):
            with contextlib.suppress(OSError, ValueError):
                found.append((str(path), json.loads((path / RECORD).read_bytes())))
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m jaxcluster.agent.guest_access")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--agent", default="", help="the folder of an agent")
    parser.add_argument("--key", default="", help="the public key to accept")
    options = parser.parse_args(argv)
    os.umask(0o077)
    here = {"host": socket.gethostname()}
    try:
        place = folders.root()
        if options.list:
            print(json.dumps({LINE: records(place), **here}), flush=True)
            return 0
        if not re.fullmatch("[0-9a-f]{64}", options.key):
            parser.error("--key is a public key: 64 hexadecimal digits")
        for ending in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ending, lambda *_: sys.exit(0))  # the key's file goes with it
        if (found := _find(place, options.agent)) is None:
            return _say_ended("its folder is empty", here)
        path, agent = found
        with let_in(path, options.key):
            print(json.dumps({"jaxcluster-agent": 1, **here}), flush=True)
            visit = SupervisionLoop(agent.token)
            visit.hear_owner()
            while not visit.leaving:
                visit.turn(LOOK_S)
            if visit.owner_is_gone:
                return _say_ended("its process is gone", here)
    except (JaxClusterError, OSError) as error:
        reason = error.message if isinstance(error, JaxClusterError) else str(error)
        print(json.dumps({"jaxcluster-agent": 1, "error": reason, **here}), flush=True)
        return 1
    return 0


def _say_ended(why: str, here: Mapping[str, str]) -> int:
    print(json.dumps({"jaxcluster-agent-ended": why, **here}), flush=True)
    return 1


def _find(place: Path, name: str) -> tuple[Path, folders.Record] | None:
    """The folder and record of an agent, if it is one of this user's that lives."""
    for path, agent in folders.records(place):
        if path == Path(name) and is_alive(agent.token):
            return path, agent
    return None


if __name__ == "__main__":
    sys.exit(main())
