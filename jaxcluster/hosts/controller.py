"""ipyparallel's controller, whose child processes end with it, and which starts without a pause.

ipyparallel's controller starts its heart monitor (and, without ``--usethreads``, eight schedulers)
as processes. When it is killed, it leaves them running for ever. Each therefore asks the kernel,
right after its fork, to be ended with its parent.

It tells clients at once that a rank has died. ipyparallel has a nanny process beside each engine
for that. Nannies would cost a start more imports. A rank's identity ends in its pid
(``JaxEngine.ident``). The other part, signals, is the rank's own (``RankKernel.signal_request``).
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import sys
import time
from types import SimpleNamespace
from typing import Any

import zmq
from ipyparallel.controller import app
from ipyparallel.controller.broadcast_scheduler import BroadcastScheduler
from ipyparallel.controller.hub import Hub

from jaxcluster.supervision.processes import die_with_parent, pid_space_mark
from jaxcluster.wire.sockets import Context

# Heartbeats are rare, as they and the engines' looks at them were a third of what an idle cluster
# costs; a minute of misses keeps engines that are busy in C code.
# Schedulers on threads: cells don't pass through them, and eight processes less come up sooner.
# One broadcast scheduler, not a tree: see ``SingleScheduler``.
ARGS = (
    "--usethreads",
    "--IPController.broadcast_scheduler_depth=0",
    "--HeartMonitor.period=10000",
    "--HeartMonitor.max_heartmonitor_misses=6",
    "--log-level=40",
    # ipyparallel signs its messages, but sends them in clear over TCP. Without this option any user
    # of this machine can read the output of cells that run through it. It costs a start 0.05 s.
    *(("--IPController.enable_curve=True",) if zmq.has("curve") else ()),
)
MOST_TRIES = 5
_PROCESS = re.compile(rb"-jaxcluster-([0-9a-f]+)-(\d+)$")


def process_of(identity: bytes) -> int | None:
    """The pid of an engine; None for one of another host, or not of ours."""
    found = _PROCESS.search(identity)
    return int(found[2]) if found and found[1].decode() == pid_space_mark() else None


class WatchingHub(Hub):
    """Hears of an engine when it comes, and when its process has ended, not by its heart."""

    def register_engine(self, reg: Any, msg: Any) -> Any:
        id, heart = super().register_engine(reg, msg), msg["content"]["uuid"].encode()
        if heart in self.incoming_registrations:
            self.finish_registration(heart)
        return id

    def finish_registration(self, heart: bytes) -> None:
        super().finish_registration(heart)
        pid, id = process_of(heart), self.by_ident.get(heart)
        if pid is None or id is None:
            return
        try:
            ended = os.pidfd_open(pid)
        except OSError:  # it has ended already
            return

        def unregister(*_: Any) -> None:
            self.loop.remove_handler(ended)
            os.close(ended)
            if self.by_ident.get(heart) == id:
                self.unregister_engine(heart, {"content": {"id": id}})

        self.loop.add_handler(ended, unregister, self.loop.READ)


class SingleScheduler(BroadcastScheduler):
    """The broadcast scheduler where there is no tree of them (``broadcast_scheduler_depth=0``).

    ipyparallel's in a tree keep their coalesced replies in their class (9.2). On threads of one
    process each takes the others' replies, so none ever comes. A single one leaves out the ranks of
    its replies' parts, which clients read.
    """

    def send_to_targets(
        self, msg: Any, original_msg_id: Any, targets: Any, idents: Any, is_coalescing: bool
    ) -> None:
        super().send_to_targets(msg, original_msg_id, targets, idents, is_coalescing)
        if is_coalescing:
            self.accumulated_targets[original_msg_id] = msg["metadata"]["targets"]


def main(folder: str, address: str) -> None:
    """Run the controller, with its files in ``folder``, where engines come to ``address``."""
    me = os.getpid()
    os.register_at_fork(after_in_child=lambda: die_with_parent(me))
    # From Python 3.14 on, a fork server would start its processes. That is no child of this
    # process: it and its folder in /tmp would outlive a kill. So they are forked, as before.
    multiprocessing.set_start_method("fork", force=True)
    # It sleeps 0.25 s before it writes its connection files, but waits for nothing. That is its one
    # sleep, in init_hub (ipyparallel 9.2). All ranks would wait with it.
    if ":" in address:
        address = f"[{address}]"
        zmq.Context.instance().set(zmq.IPV6, 1)
        zmq.Context = Context  # type: ignore[misc] # the heart monitor makes its own
    app.time = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    app.Hub = WatchingHub
    app.BroadcastScheduler = SingleScheduler
    sys.argv = ["ipcontroller"]
    own = (f"--profile-dir={folder}", f"--ip={address}", f"--location={address}")
    for tries_left in reversed(range(MOST_TRIES)):
        try:
            app.IPController.launch_instance(argv=[*ARGS, *own])
            return
        except zmq.ZMQError as failed:
            # Another process has taken a port between its choice and its use. No connection file
            # is written yet: the hub's ports are bound before.
            if failed.errno != errno.EADDRINUSE or not tries_left:
                raise
            app.IPController.clear_instance()
