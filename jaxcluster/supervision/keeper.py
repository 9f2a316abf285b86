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


class Kept:
    """The commands that run, by their processes' tokens, and how they are found."""

    def __init__(self) -> None:
        self.commands: dict[str, Task] = {}
        self.had_some = self.is_detached = False
        self.ways = Ways()
        self.sockets: set[str] = set()  # that were there

    def hear(self, line: bytes) -> None:
        message = json.loads(line)
        if "command" in message:
            self.commands[message["token"]] = Task((), **message["command"])
            self.had_some = True
        elif "over" in message:
            self.commands.pop(message["over"], None)
        elif "detach" in message:
            self.is_detached = True
            self.ways = Ways(message["detach"])

    def are_lost(self) -> bool:
        """An ending command removes its own socket."""
        paths = {task.socket for token, task in self.commands.items() if is_alive(token)}
        self.sockets |= {path for path in paths if os.path.lexists(path)}
        gone = [not os.path.lexists(path) for path in paths & self.sockets]
        return self.ways.are_lost(*gone)

    def finish(self, token: str) -> None:
        """Of a command whose process has ended: end what is left of it."""
        task = self.commands.pop(token)
        end_group(int(token.partition(":")[0]), task.term_s)
        cancel(task)


def main() -> None:
    owner, folder, at_end = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's: they are the notebook's
    kept, inbox, is_left = Kept(), b"", False
    touched_at = time.monotonic()
    while True:
        ready = select.select([] if is_left else [0], [], [], LOOK_S)[0]
        if ready:
            data = os.read(0, 1 << 16)
            is_left = not data
            *lines, inbox = (inbox + data).split(b"\n")
            for line in lines:
                kept.hear(line)
        is_gone = is_left or not (ready or is_alive(owner))
        if kept.are_lost() if kept.is_detached else is_gone:
            break
        for token in [one for one in kept.commands if is_gone and not is_alive(one)]:
            kept.finish(token)
        if is_gone and kept.had_some and not kept.commands:
            break
        if time.monotonic() - touched_at > TOUCH_S:
            touched_at = time.monotonic()
            keep_young([folder])
    end_leaders(kept.commands)
    for token in list(kept.commands):
        kept.finish(token)
    os.closerange(3, 256)  # whoever looks then finds nobody who keeps the cluster alive
    for argv in json.loads(at_end):
        subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)
