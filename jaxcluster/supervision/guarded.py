"""A guard's side in the process that owns it: it starts the guard, and has it run commands."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxcluster.supervision import guard, starting
from jaxcluster.supervision.ends import end_group, let_go
from jaxcluster.supervision.processes import start_time

STOP_S = 30.0


class GuardedCommands:
    """A guard process and the commands it runs for us.

    Args:
      on_event: called with (id, event) for each event of a command, on the reader's thread. The
        last one of a command has ``"ended"``; its value is None if the guard itself was killed.
      kept_open: descriptors that the guard holds for as long as it is there.
    """

    def __init__(
        self, on_event: Callable[[int, Mapping[str, Any]], None], kept_open: Sequence[int] = ()
    ) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()
        self._tasks: dict[int, guard.Task] = {}
        self._pids: dict[int, int] = {}
        self._ids = itertools.count(1)
        self._process = starting.guard(kept_open)
        self._reader = threading.Thread(target=self._read, name="jaxcluster-guard", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, task: guard.Task) -> int:
        """Start a command; returns its id.

        Raises:
          BrokenPipeError: the guard is gone.
        """
        id = next(self._ids)
        with self._lock:
            self._tasks[id] = task
        if not self._send(run=id, task=task.told()):
            with self._lock:
                self._tasks.pop(id, None)
            raise BrokenPipeError("the guard is gone")
        return id

    def stop(self, id: int) -> None:
        """Have a command end; ``on_event`` tells when it has."""
        self._send(stop=id)

    def look_after(self, folders: Sequence[Path]) -> None:
        """Have these folders removed when this process is gone, and all commands have ended."""
        self._send(folders=[str(path) for path in folders])

    def detach(self, found_by: Sequence[Path] = ()) -> None:
        """Let the commands outlive this process, until one of these folders is gone."""
        self._send(detach=[str(path) for path in found_by])

    def leave(self) -> None:
        """Have no more commands for it: detached, it ends with the last one."""
        self._send(left=True)

    def close(self, timeout_s: float = STOP_S) -> None:
        """End all commands; returns when they have ended."""
        self._send(closed=True)
        let_go(self._process, timeout_s)
        if threading.current_thread() is not self._reader:
            self._reader.join(5)

    def _send(self, **message: object) -> bool:
        assert self._process.stdin is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError):  # gone, or closed
                return False
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:  # its last line, incomplete
                    continue
                id = event["id"]
                if "started" in event:
                    self._pids[id] = event["started"]
                if "ended" in event:
                    with self._lock:
                        self._tasks.pop(id, None)
                self._on_event(id, event)
        self._process.wait()
        with self._lock, contextlib.suppress(OSError):
            orphans, self._tasks = self._tasks, {}
            assert self._process.stdin is not None
            self._process.stdin.close()
        for id, task in orphans.items():
            cancelled, said = self._end_orphan(self._pids.get(id), task)
            self._on_event(id, {"ended": None, "cancelled": cancelled, "said": said})

    @staticmethod
    def _end_orphan(pid: int | None, task: guard.Task) -> tuple[int | None, str]:
        """The guard was killed: do what it would have done, and say of it what that would say."""
        if pid is not None:  # the command has had its SIGTERM, from the kernel
            for _ in end_group(pid, task.term_s, lambda: start_time(pid) is None):
                time.sleep(0.05)
        steps = guard.cancel(task)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                cancelled, said = end.value
                return cancelled, said
            time.sleep(0.05)
