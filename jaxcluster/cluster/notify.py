"""A command of the user's that is run when a long cell has ended: for who is not looking."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

from jaxcluster.errors import CellInterrupted
from jaxcluster.model.outputs import CellRecord
from jaxcluster.text import format_seconds

AFTER_S = 60.0  # a cell that has run for so long is a long one
RUN_S = 60.0  # that the command may take
LINE_CHARS = 300


class Notifier:
    """Runs the command, on a thread of its own: no cell waits for it.

    Attributes:
      command: for the shell; "" for none.
      after_s: how long a cell must have run.
    """

    def __init__(self) -> None:
        self.command = ""
        self.after_s = AFTER_S

    def ended(
        self, cluster: str, record: CellRecord, seconds: float, error: BaseException | None
    ) -> threading.Thread | None:
        """A cell has ended; returns the thread that tells of it, if one does.

        Who stopped it knows of that.
        """
        if not self.command or seconds < self.after_s or isinstance(error, CellInterrupted):
            return None
        status = "ended" if error is None and record.ok else "failed"
        text = f"Cell [{record.execution_count}] of cluster {cluster!r} {status} after "
        text += format_seconds(seconds)
        whys = [str(error)] if error is not None else [e.evalue for e in record.errors.values()]
        why = "".join(whys[:1]).strip().partition("\n")[0][:LINE_CHARS]
        told = {
            "CELL_TEXT": f"{text}: {why}" if why else f"{text}.",
            "CELL_STATUS": status,
            "CELL_NUMBER": str(record.execution_count),
            "CELL_SECONDS": f"{seconds:.0f}",
            "CELL_CLUSTER": cluster,
        }
        thread = threading.Thread(target=self._run, args=(told,), daemon=True)
        thread.start()
        return thread

    @staticmethod
    def test(command: str) -> str:
        """Run one now, as for a cell; returns what went wrong, "" if nothing did."""
        told = {"TEXT": "A test: cell [7] of cluster 'main' ended after 2 min.", "STATUS": "ended"}
        told |= {"NUMBER": "7", "SECONDS": "120", "CLUSTER": "main"}
        return run(command, {f"CELL_{name}": value for name, value in told.items()})

    def _run(self, told: dict[str, str]) -> None:
        if problem := run(self.command, told):
            print(f"jaxcluster: {problem}", file=sys.stderr)


def run(command: str, told: dict[str, str]) -> str:
    """Run a command of the user's; returns what went wrong, "" if nothing did.

    It and all that it has started are ended after ``RUN_S``.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            command, shell=True, env={**os.environ, **told}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        return f"the command of %jaxcluster notify can't be run: {error}"
    try:
        output, _ = process.communicate(timeout=RUN_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    said = output.decode(errors="replace").strip()[-LINE_CHARS:]
    if process.returncode == 0:
        return ""
    how = f"ended with exit status {process.returncode}"
    if time.monotonic() - began >= RUN_S:
        how = f"was ended after {RUN_S:g} s"
    return f"the command of %jaxcluster notify {how}{': ' if said else '.'}{said}"


notifier = Notifier()  # this process's: whatever cluster its cells run on
