"""A restart that another process asks of the one that has started the cluster.

Only that one can give the ranks new processes: it has their launcher, and what they have saved.
Whoever is attached asks it through the agent of each host, which passes messages on to all
that are connected to it:

    {"restart": ID, "clean": false}       asked
    {"answer": ID, "state": "begun"}      the starter has heard it
    {"answer": ID, "state": "done", "told": "...", "failed": false}
"""

from __future__ import annotations

import contextlib
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.cluster.owner import Owner
from jaxcluster.cluster.world import World
from jaxcluster.errors import CellInterrupted, JaxClusterError, LaunchError, RankHung, RecoveryError
from jaxcluster.wire.forks import Relay

HEARD_S = 5.0  # for the starter to say that it has heard
RESTART_S = 180.0
RESTORE_S = 30.0  # after which no answer comes: its new processes may be another agent's
END_S = 15.0  # that interrupted cells get to end

Message = Mapping[str, Any]


def ask_restart(world: World, clean: bool, is_replaced: Callable[[], bool]) -> str:
    """Have the process that has started a cluster restart it; returns what was kept.

    The caller's connection is to processes that are gone then.

    Args:
      is_replaced: whether there are new processes, as the cluster's record has it.

    Raises:
      RecoveryError: nobody who can restart it is there, or it failed; why is said.
    """
    id = secrets.token_hex(8)
    answers: wire.Inbox[Message] = wire.Inbox()

    def take(message: Message) -> None:
        if message.get("answer") == id:
            answers.put(message)

    world.on_message = take
    try:
        world.fleet.command(Relay({"restart": id, "clean": clean}), 10.0)
        if _next(answers, HEARD_S) is None:
            raise RecoveryError(
                "The cluster can't be restarted: the notebook or shell that started it is no "
                "longer connected.",
                "%jaxcluster stop ends it, and %jaxcluster start starts another.",
            )
        deadline = time.monotonic() + RESTART_S
        replaced_at = math.inf
        while (now := time.monotonic()) < min(deadline, replaced_at + RESTORE_S):
            answer = _next(answers, 0.5)
            if answer is not None and answer.get("state") == "done":
                if answer.get("failed"):
                    raise RecoveryError(str(answer.get("told")))
                return str(answer.get("told"))
            if answer is None and replaced_at == math.inf and is_replaced():
                replaced_at = now
        if replaced_at < math.inf:
            return "It has new processes."
    finally:
        world.on_message = _ignore
    raise RecoveryError(f"It has not been restarted within {RESTART_S:.0f} s.")


def _next(answers: wire.Inbox[Message], timeout_s: float) -> Message | None:
    with contextlib.suppress(queue.Empty):
        return answers.get(timeout=timeout_s)
    return None


def _ignore(message: Message) -> None:
    """Nothing was asked for."""


class Delegate:
    """Does what others ask of the process that has started a cluster."""

    def __init__(self, cluster: Owner) -> None:
        self._cluster = cluster
        self._known: set[str] = set()  # each host passes a message on

    def on_message(self, message: Message) -> None:
        """On the hosts' thread."""
        id = message.get("restart")
        if not isinstance(id, str) or id in self._known or not self._cluster.can_restart:
            return
        self._known.add(id)
        clean = bool(message.get("clean"))
        run = threading.Thread(
            target=self._restart, args=(id, clean), name="jaxcluster-asked", daemon=True
        )
        run.start()

    def _restart(self, id: str, clean: bool) -> None:
        self._say({"answer": id, "state": "begun"})
        failed = True
        try:
            before = self._cluster.world
            end_cells(self._cluster)
            if self._cluster.world is before:
                told = self._cluster.restart(clean=clean)
            else:  # the end of a cell has restarted it
                told = self._cluster.recovered
            failed = False
        except (JaxClusterError, CellInterrupted) as error:
            told = str(error)
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        self._say({"answer": id, "state": "done", "told": told, "failed": failed})

    def _say(self, message: Message) -> None:
        with contextlib.suppress(LaunchError):
            self._cluster.world.fleet.command(Relay(dict(message)), 5.0)


def end_cells(cluster: Owner) -> None:
    """Stop the cells of this process: under new processes they would end as if ranks had died.

    Raises:
      RankHung: one does not end within ``END_S``.
    """
    for cell in cluster.cells:
        cell.stop()
    until = time.monotonic() + END_S
    while cells := cluster.cells:
        if time.monotonic() > until:
            raise RankHung(
                f"Cell [{cells[0].record.execution_count}] does not end.",
                "Stop the cluster, and start it again.",
            )
        time.sleep(0.01)
