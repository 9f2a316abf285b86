"""Cells in plain JAX processes, as a program for ``jax.distributed`` runs, to compare with ranks'.

``python plaincells.py ADDRESS NUM_PROCESSES PROCESS_ID`` reads cells from its standard input and
writes how each has gone.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from pace import slowness

MARK = "how the cells went: "
LONG_S = 60.0  # for all cells of tests/ranks/test_guides.py, which take some 15


@dataclass(frozen=True)
class Went:
    """How a cell has gone in one process: what it printed, and the name of the error that ended it.

    What a cell prints is of no interest where it has failed: an interrupt comes anywhere.
    """

    stdout: str
    error: str = ""


def run(cells: Sequence[str], num_processes: int, devices_each: int) -> list[list[Went]]:
    """How each of the cells has gone, for each process, in processes of their own.

    Plain JAX may hang on a busy machine: what takes too long is tried once more.
    """
    try:
        return _run(cells, num_processes, devices_each)
    except AssertionError:
        return _run(cells, num_processes, devices_each)


def _run(cells: Sequence[str], num_processes: int, devices_each: int) -> list[list[Went]]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices_each),
        "NPROC": "16",  # with few cores XLA's own pool of threads starves
    }
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(num_processes)]
        started = []
        for process_id, log in enumerate(logs):
            process = subprocess.Popen(
                [sys.executable, __file__, address, str(num_processes), str(process_id)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=env,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        late = threading.Timer(LONG_S * slowness(), lambda: [one.kill() for one in started])
        late.start()
        stack.callback(late.cancel)
        for process in started:
            assert process.stdin is not None
            process.stdin.write(json.dumps(list(cells)))
            process.stdin.close()
        return [_read(process, log) for process, log in zip(started, logs, strict=True)]


def _read(process: subprocess.Popen[str], log: IO[bytes]) -> list[Went]:
    assert process.stdout is not None
    for line in process.stdout:  # gloo prints there too
        if line.startswith(MARK):
            return [Went(*one) for one in json.loads(line.removeprefix(MARK))]
    log.seek(0)
    said = log.read().decode(errors="replace")[-2000:]
    raise AssertionError(f"a plain process has ended with exit code {process.wait()}: {said}")


def _main(address: str, num_processes: int, process_id: int) -> None:
    cells = json.loads(sys.stdin.read())
    import jax
    from IPython.core.interactiveshell import InteractiveShell

    if num_processes > 1:
        jax.distributed.initialize(address, num_processes, process_id)
    shell: Any = InteractiveShell.instance()
    shell.showtraceback = lambda *args, **kwargs: None
    went = []
    for cell in cells:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = shell.run_cell(cell, silent=True)
        error = result.error_before_exec or result.error_in_exec
        went.append((printed.getvalue(), type(error).__name__ if error is not None else ""))
    print(MARK + json.dumps(went), flush=True)
    signal.pause()  # the first one's end would be the others'


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
