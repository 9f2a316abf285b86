"""``jaxcluster.agree()`` in jobs of plain processes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
from plainjobs import JOB, check_nothing_is_left, ended, start

AUTO = """
import os
if os.environ.get("JAXCLUSTER_AGREE") == "1":
    import jaxcluster.job.auto
"""


@pytest.mark.parametrize(
    ("case", "statuses", "says"),
    [
        ("skip", [1, 1, 1], "Rank 1 ended the script without the launch that ranks 0, 2 wait for."),
        ("mix", [1, 1, 1], "Ranks 0-2 were about to launch different programs."),
        ("fail", [1, 1, 1], "failed   ValueError: a bad batch"),
        ("die", [1, -signal.SIGKILL, 1], "Rank 1 died."),
        ("thread", [1, -signal.SIGKILL, 1], "Rank 1 died."),
    ],
)
def test_a_mistake_of_one_process_is_an_error_in_all(
    case: str, statuses: list[int], says: str, folder: Path
) -> None:
    codes, told = ended(start(case, folder))
    assert codes == statuses
    for rank, text in enumerate(told):
        if codes[rank] > 0:
            assert says in text
            assert text.count("launch") < 12, "it is told once"
        if rank != 1:
            assert "total = float(step(x))" in text
    check_nothing_is_left(folder)


def test_a_slow_process_is_waited_for_and_named(folder: Path) -> None:
    processes = start("sleep", folder)
    codes, told = ended(processes)
    assert codes == [0, 0, 0]
    assert "Ranks 0, 2 have waited 2 s for rank 1 (line 38, jit(" in told[0]
    assert "waited" not in told[2], "one process tells it"
    check_nothing_is_left(folder)


def test_a_signal_has_a_process_tell_who_waits(folder: Path) -> None:
    processes = start("sleep", folder)
    assert processes[0].stderr is not None
    for line in processes[0].stderr:
        if "have waited" in line:
            break
    processes[2].send_signal(signal.SIGUSR1)
    codes, told = ended(processes)
    assert codes == [0, 0, 0]
    assert "Ranks 0, 2 have waited" in told[2]


def test_a_referee_that_ends_is_named(folder: Path) -> None:
    processes = start("sleep", folder)
    assert processes[0].stderr is not None
    for line in processes[0].stderr:
        if "have waited" in line:
            break
    (referee,) = psutil.Process(processes[0].pid).children()
    referee.kill()
    codes, told = ended(processes)
    assert 0 not in codes
    assert all("The referee, a child of process 0, has ended" in text for text in told)


def test_a_referee_that_cannot_start_is_an_error_in_all_processes(
    folder: Path, tmp_path: Path
) -> None:
    """Its folder is on a file system that is full, or read-only."""
    shutil.copy(JOB, tmp_path / "job.py")
    broken = "import tempfile\n\ndef fail(*_, **__):\n    raise OSError('no space left')\n\n"
    source = (
        (tmp_path / "job.py")
        .read_text()
        .replace(
            "    assert jaxcluster.agree",
            "    tempfile.mkdtemp = fail\n    assert jaxcluster.agree",
        )
    )
    (tmp_path / "job.py").write_text(broken + source)
    began = time.monotonic()
    codes, told = ended(start("skip", folder, script=tmp_path / "job.py"))
    assert time.monotonic() - began < 60
    assert 0 not in codes
    assert all("no space left" in text for text in told)


def test_a_variable_turns_it_on_without_a_line_of_code(tmp_path: Path) -> None:
    """In a folder whose path is too long for a socket."""
    (tmp_path / "sitecustomize.py").write_text(AUTO)
    folder = tmp_path / ("long-" * 20)
    folder.mkdir()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    codes, told = ended(start("auto", folder, PYTHONPATH=path, JAXCLUSTER_AGREE="1"))
    assert codes == [1, 1, 1]
    assert all("were about to launch different programs" in text for text in told)
