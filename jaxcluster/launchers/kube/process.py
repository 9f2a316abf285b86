"""The process that makes a launch's Job, looks after it, and deletes it: it alone asks Kubernetes.

    main FOLDER         makes what ``job.json`` and ``service.json`` say, prints the agents' lines
                        when their pods run, tells which pod has ended and why, and deletes the Job
                        when its input ends, which the launcher's guard has it do with the notebook
    remove FOLDER       deletes what is left where ``main`` was killed
    successor FOLDER I  waits for the agent of a pod that the Job has made in the place of pod I

In FOLDER it writes what it waits for (``waiting``), the deadline, and for each index the agent of
its present pod (``pod-I.json``). What its launcher is to explain goes to its standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from jaxcluster import wire
from jaxcluster.launchers.kube.job import (
    FENCE,
    FIRST_LOOK_S,
    MADE,
    REMOVED,
    TAKEN,
    Launch,
    read_json,
    tell,
)
from jaxcluster.launchers.kube.launcher import LOGIN, SEEN, WAITING
from jaxcluster.launchers.kube.reasons import Trouble
from jaxcluster.supervision.processes import wake_on

if TYPE_CHECKING:
    from jaxcluster.launchers.kube.api import Api


class Over:
    """The end of this process's standard input, or SIGTERM."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        # A kubeconfig's plugin for logins would read it, too, and be asked by nobody.
        self._input = os.dup(0)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        self._stirred, self._stir = os.pipe()
        for end in (self._stirred, self._stir):
            os.set_blocking(end, False)
        for fd in (self._input, wake_on(signal.SIGTERM)[0], self._stirred):
            self.selector.register(fd, selectors.EVENT_READ)

    def stir(self) -> None:
        """Let ``wait`` return, although it is not over. Any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._stir, b".")

    def wait(self, timeout_s: float) -> bool:
        """Whether it has come by then, or there is something to look at before."""
        over = False
        for key, _ in self.selector.select(timeout_s):
            if key.fd == self._stirred:
                os.read(self._stirred, 4096)
            else:
                over = over or key.fd != self._input or not self._read()
        return over

    def _read(self) -> bytes:
        """What has come; nothing at its end."""
        try:
            return os.read(self._input, 4096)
        except OSError:
            return b""


def main(folder: str) -> None:
    """Make the Job, look after it until the input ends, delete it."""
    over = Over()
    _leave_out_schemas()
    launch = None
    try:
        if (api := _log_in(Path(folder), over)) is None:
            return
        launch = Launch(Path(folder), api)
        launch.make(over.wait)
        threading.Thread(target=launch.watch, args=(over.stir,), daemon=True).start()
        while not over.wait(launch.look()):
            pass
    except Trouble as trouble:
        tell(trouble.reason)
        sys.exit(1)
    finally:
        if launch is not None:
            launch.remove()


def _leave_out_schemas() -> None:
    """Where this is installed, the client imports it, and with it seconds of what is not needed."""
    sys.modules.setdefault("kubernetes_validate", None)  # type: ignore[arg-type]


def _log_in(folder: Path, over: Over) -> Api | None:
    """A way to the cluster; None where nobody waits for one any more.

    On a thread: a kubeconfig may name a program that logs in, and that may wait for an answer.

    Raises:
      Trouble: there is none.
    """
    from jaxcluster.launchers.kube.api import Api

    found: wire.Inbox[Api | BaseException] = wire.Inbox()

    def make() -> None:
        try:
            found.put(Api(read_json(folder / "task.json")))
        except BaseException as error:
            found.put(error)
        over.stir()

    (folder / WAITING).write_text(LOGIN)
    threading.Thread(target=make, daemon=True).start()
    while found.empty():
        if over.wait(60.0):
            return None
    (folder / WAITING).write_text("")
    api = found.get()
    if isinstance(api, BaseException):
        raise api
    return api


def remove(folder: str) -> None:
    """Delete the Job, where that has not been done."""
    if Path(folder, MADE).exists() and not Path(folder, REMOVED).exists():
        _leave_out_schemas()
        from jaxcluster.launchers.kube.api import Api

        launch = Launch(Path(folder), Api(read_json(Path(folder, "task.json"))))
        launch.may_be_there = True
        if not launch.remove():
            sys.exit(1)


def successor(folder: str, number: str) -> None:
    """Print the agent of another pod than the last one of this index, and stay with it.

    The notebook has given up the last one's agent; if its pod still runs, that is ended first.
    """
    over = Over()
    seen, taken = Path(folder, SEEN.format(number)), Path(folder, TAKEN.format(number))
    with contextlib.suppress(OSError):
        Path(folder, FENCE.format(number)).write_text(taken.read_text())
    while not over.wait(FIRST_LOOK_S):
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = read_json(seen)
            if taken.read_text() != found["uid"]:
                taken.write_text(found["uid"])
                print(json.dumps(found["line"]), flush=True)
                break
    while not over.wait(3600):
        pass
