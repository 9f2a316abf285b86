"""``python -m jaxcluster.hosts.agent``: an agent of this host (see ``server``)."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from jaxcluster.errors import JaxClusterError
from jaxcluster.host.processes import allow_files
from jaxcluster.hosts.agent import folder as folders
from jaxcluster.hosts.agent.family import Family

LEASE_S = 20.0
FIRST_LEASE_S = 60.0  # a start of many hosts takes its time until it connects to the first


def main(argv: list[str] | None = None) -> None:
    """Run an agent. Words that it does not know are left: ipyparallel's launchers add some."""
    parser = argparse.ArgumentParser(prog="python -m jaxcluster.hosts.agent")
    parser.add_argument("--owner-key", required=True, help="the public key of its owner")
    parser.add_argument(
        "--bind", default="", help="'ipc': in its own folder; else any TCP port of its address"
    )
    parser.add_argument("--lease", type=float, default=LEASE_S, help="seconds without a client")
    parser.add_argument(
        "--first-lease", type=float, default=FIRST_LEASE_S, help="seconds until the first client"
    )
    parser.add_argument(
        "--signalled-status", type=int, default=0, help="exit status after a signal"
    )
    parser.add_argument("--owner-stdin", action="store_true", help="end with standard input")
    parser.add_argument("--owner", default="", help="end with this process: PID:START")
    parser.add_argument("--id", default="", help="the cluster's name for this host's agent")
    parser.add_argument("--fence", action="store_true", help="end an older agent of this id first")
    parser.add_argument("--limit", type=int, default=64 << 20, help="bytes kept for a client")
    options = parser.parse_known_args(argv)[0]
    if not re.fullmatch("[0-9a-f]{64}", options.owner_key):
        parser.error("--owner-key is a public key: 64 hexadecimal digits")
    umask = os.umask(0o077)
    allow_files()
    try:
        place = folders.root()
        folders.sweep(place)
        if options.fence:
            folders.fence(place, options.id)
        folder = folders.make(place)
    except JaxClusterError as error:
        _announce({"error": error.message, "hint": error.hint})
        sys.exit(1)
    own = options.bind.removeprefix("ipc://") if options.bind.startswith("ipc://") else ""
    family = Family(folder, options.id, umask, own)
    asyncio.run(_live(options, folder, family))


async def _live(options: argparse.Namespace, folder: folders.Folder, family: Family) -> None:
    # Late: the fork server's imports, which take longest, are on their way by now.
    from jaxcluster.hosts.agent.server import Agent, reason_of

    agent = Agent(options, folder, family)
    try:
        _announce(asdict(agent.start()))
        await agent.run()
    except BaseException as error:
        agent.has_failed = True
        agent.end_for(reason_of(error))
        if isinstance(error, OSError):
            _announce({"error": agent.why, "hint": ""})
        else:
            traceback.print_exc()
    finally:
        await agent.end()


def _announce(line: Mapping[str, Any]) -> None:
    """Print the agent's one line."""
    print(json.dumps({"jaxcluster-agent": 1, "host": socket.gethostname(), **line}), flush=True)


if __name__ == "__main__":
    main()
