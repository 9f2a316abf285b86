"""A small process that ends a launcher's commands when the notebook is gone, or keeps them.

Its arguments are its owner's token, the cluster's folder, and what it runs at its end, as JSON. Its
input is JSON lines:

    {"command": Task, "token": TOKEN}   one that runs, without its words
    {"over": TOKEN}                     one that is over
    {"detach": [PATH, ...]}             the commands outlive the owner, and are found by these

When its owner is gone, it ends the commands, unless they are detached. Those it ends when nobody
can find them any more. It does not run them: if it is killed, nothing happens to them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time

from jaxcluster.supervision.commands import Task, cancel, end_leaders
from jaxcluster.supervision.ends import end_group
from jaxcluster.supervision.folders import Ways, keep_young
from jaxcluster.supervision.processes import is_alive

LOOK_S = 0.5
TOUCH_S = 3600.0


def main() -> None:
    owner, folder, at_end = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's: they are the notebook's
    commands: dict[str, Task] = {}  # by their processes' tokens
    ways: Ways | None = None  # once they are detached
    sockets = set[str]()  # of theirs, that were there
    inbox, is_left, had_some, touched_at = b"", False, False, time.monotonic()
    while True:
        ready = select.select([] if is_left else [0], [], [], LOOK_S)[0]
        if ready:
            data = os.read(0, 1 << 16)
            is_left = not data
            *lines, inbox = (inbox + data).split(b"\n")
            for line in lines:
                match json.loads(line):
                    case {"command": about, "token": token}:
                        commands[token], had_some = Task((), **about), True
                    case {"over": token}:
                        commands.pop(token, None)
                    case {"detach": paths}:
                        ways = Ways(paths)
        is_gone = is_left or not (ready or is_alive(owner))
        is_over = is_gone
        sockets |= {one.socket for one in commands.values() if os.path.lexists(one.socket)}
        if ways is not None:  # an ending command removes its own socket
            own = {task.socket for token, task in commands.items() if is_alive(token)}
            is_over = ways.are_lost(*(not os.path.lexists(path) for path in own & sockets))
        if is_over:
            break
        for token in [one for one in commands if is_gone and not is_alive(one)]:
            _finish(token, commands.pop(token))
        if is_gone and had_some and not commands:
            break
        if time.monotonic() - touched_at > TOUCH_S:
            touched_at = time.monotonic()
            keep_young([folder])
    end_leaders(commands)
    for token, task in commands.items():
        _finish(token, task)
    os.closerange(3, 256)  # whoever looks then finds nobody who keeps the cluster alive
    for argv in json.loads(at_end):
        subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)


def _finish(token: str, task: Task) -> None:
    """End the rest of a command whose process has ended."""
    end_group(int(token.partition(":")[0]), task.term_s)
    cancel(task)
