"""The stop button of a notebook: it reaches every rank, and the cell waits for their answers."""

from __future__ import annotations

import re
import time

import pytest
from helpers import Cell, Notebook

pytestmark = pytest.mark.any_jax

BUSY_S = 20.0  # what a busy machine may add to each of the figures

# The clock is the machine's, so that the notebook's and the ranks' times can be compared.
NOTE_TIME = """%%spmd
try:
    print('running', flush=True)
    while True:
        {wait}
except KeyboardInterrupt:
    at = time.time()
    time.sleep(0.3)
    print('tidied up')
    raise
"""
# Printed from a thread and later: a press while the notebook itself prints would end only that.
PRINTS_LATER = "import threading\nthreading.Timer(0.5, print, ['running']).start()\n"


@pytest.fixture(scope="module", autouse=True)
def started(notebook: Notebook) -> None:
    notebook.ok("%jaxcluster start -n 4 --devices-per-process 2")
    notebook.ok("%%spmd\nimport time\ntotal = 7")


def stop(notebook: Notebook, cell: Cell) -> float:
    """Press the button once the ranks run the cell; returns when that was."""
    notebook.until(lambda: "running" in cell.stdout, "process 0 runs the cell")
    pressed = time.time()
    notebook.press_stop()
    notebook.wait(cell)
    assert time.time() - pressed < BUSY_S
    return pressed


@pytest.mark.promise("The promise")
@pytest.mark.parametrize("wait", ["pass", "time.sleep(1000)"], ids=["a loop", "a sleep"])
def test_the_stop_button_reaches_every_rank_and_the_cell_waits_for_what_they_say(
    notebook: Notebook, wait: str
) -> None:
    cell = notebook.begin(NOTE_TIME.format(wait=wait))
    pressed = stop(notebook, cell)
    assert cell.stdout == "running\ntidied up\n"
    assert re.search(r"KeyboardInterrupt: cell \[\d+\] was stopped on ranks 0-3\.", cell.error)
    assert "Traceback" not in cell.error
    assert notebook.ok("%%spmd --all --out record\nprint(at)").text
    times = notebook.ok("print(*(record.stdout(rank) for rank in range(4)))").stdout.split()
    late = [float(at) - pressed for at in times]
    assert len(late) == 4 and all(0 <= s < BUSY_S for s in late), late  # the issue: 0.2 s


def test_ranks_that_heed_no_stop_are_given_a_bounded_time(notebook: Notebook) -> None:
    cell = notebook.begin(
        "%%spmd\nprint('running', flush=True)\nwhile True:\n    try:\n        time.sleep(0.05)\n"
        "    except KeyboardInterrupt:\n        pass"
    )
    notebook.until(lambda: "running" in cell.stdout, "process 0 runs the cell")
    notebook.press_stop()
    time.sleep(2)  # its code is left alone: it may have something to save
    assert not cell.done
    stop(notebook, cell)
    assert "ranks 0-3" in cell.error
    # Whatever became of the ranks: they are new, or a line says how to get new ones.
    if notebook.run("%spmd 1").error:
        assert "%jaxcluster restart" in cell.error
        notebook.ok("%jaxcluster restart --clean")
        assert notebook.ok("%spmd 1").result == "1"


def test_no_later_cell_is_skipped_or_stopped(notebook: Notebook) -> None:
    notebook.ok("%%spmd\nimport time\ncount = 0")
    cell = notebook.begin("%%spmd\nprint('running', flush=True)\nwhile True: pass")
    notebook.until(lambda: "running" in cell.stdout, "process 0 runs the cell")
    queued = [notebook.begin("%%spmd\ncount += 1") for _ in range(3)]
    notebook.press_stop()
    notebook.wait(cell)
    for each in queued:
        assert not notebook.wait(each).error
    shown = notebook.ok("%%spmd --all\ncount").text
    assert shown.splitlines() == ["── ranks 0-3 ──", "3"]


def test_what_is_waited_for_in_the_background_can_be_stopped(notebook: Notebook) -> None:
    notebook.ok("%%spmd --async --out background\nwhile True: time.sleep(0.01)")
    cell = notebook.begin(f"{PRINTS_LATER}%pull total")
    stop(notebook, cell)
    assert cell.error.startswith("KeyboardInterrupt: stopped."), cell.error
    assert len(cell.error.splitlines()) == 1
    cell = notebook.begin(f"{PRINTS_LATER}background.wait()")
    stop(notebook, cell)
    assert "was stopped on ranks 0-3." in cell.error
    assert notebook.ok("%spmd 1").result == "1"


def test_the_stop_button_ends_a_start_and_leaves_nothing(notebook: Notebook) -> None:
    before = set(notebook.processes())
    notebook.ok(
        "import time\nfrom jaxcluster.cluster.starting import Starting\nask = Starting._ask\n"
        "def slowly(self, *words, **more):\n    print('running', flush=True)\n    time.sleep(100)\n"
        "Starting._ask = slowly"
    )
    cell = notebook.begin("%jaxcluster start -n 2 --name never --timeout 100")
    stop(notebook, cell)
    assert cell.error.strip() == "KeyboardInterrupt: The start was stopped."
    assert "The cluster did not start." in cell.text

    def left() -> list[str]:
        """Beside an agent and its fork server, which wait for the next start."""
        new = {pid: line for pid, line in notebook.processes().items() if pid not in before}
        return [
            line
            for line in new.values()
            if not re.search("jaxcluster.hosts.agent|forkserver", line)
        ]

    notebook.until(lambda: not left(), "nothing is left of it")
    assert "never" not in notebook.ok("%jaxcluster list").text
    notebook.ok("Starting._ask = ask")
