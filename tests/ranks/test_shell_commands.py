"""``jaxcluster start|list|stop|doctor`` in a shell."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import Home, python

import jaxcluster
from jaxcluster.cluster import attach, live_records

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.one_machine("a shell's commands find the clusters of this machine"),
]

CLI = ("-m", "jaxcluster")
Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shell(private_home: Home) -> Shell:
    """Runs a command to its end."""
    return lambda *words: python(*CLI, *words, env=private_home.environ())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("levitate", "There is no command 'levitate'."),
        ("start -n four", "-n must be a whole number from 1 up, not 'four'"),
        ("start --name ../x", "'../x' can't be a cluster's name"),
        ("stop nowhere", "NoCluster: There is no cluster 'nowhere' here"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(shell: Shell, words: str, message: str) -> None:
    done = shell(*words.split())
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert words == "levitate" or "%jaxcluster" not in done.stderr  # what to type is a shell's


def test_version_and_help_are_no_errors(shell: Shell) -> None:
    for words, first in {
        "-V": f"jaxcluster {jaxcluster.__version__}",
        "start -n x -h": "usage: jaxcluster start",
        "doctor --help": "usage: jaxcluster doctor",
    }.items():
        done = shell(*words.split())
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(first)


def test_detached_clusters_are_listed_attached_to_and_stopped(
    shell: Shell, private_home: Home
) -> None:
    started = shell("start", "-n", "2", "--name", "kept", "--detach")
    assert started.returncode == 0, started.stderr
    first, how, until_when = started.stdout.splitlines()
    assert first.startswith("Cluster 'kept': ranks 0, 1, 1 cpu device per rank (2 in all, cpu)")
    assert how == "In a notebook: %load_ext jaxcluster, then %jaxcluster attach kept"
    assert until_when == "It runs until: jaxcluster stop kept"
    assert shell("start", "-n", "1", "--name", "other", "--detach").returncode == 0
    head, *rows = shell("list").stdout.splitlines()
    assert head.split()[:2] == ["name", "ranks"]
    assert [("kept" in row, "detached" in row) for row in rows].count((True, True)) == 1

    attached = attach("kept")
    assert attached.run("print(40 + 2)", show=False).stdout(1) == "42\n"
    attached.close()

    stopped = shell("stop", "kept")
    assert stopped.returncode == 0
    assert re.fullmatch(r"Stopped ranks 0, 1 of 'kept' in \d\.\d s\.\n", stopped.stdout)
    assert shell("stop", "--all").stdout.startswith("Stopped rank 0 of 'other' in ")
    private_home.wait_until_empty()
    assert shell("list").stdout == "No cluster is running. Start one: jaxcluster start -n 4\n"


@pytest.mark.parametrize("end", [signal.SIGINT, "stop"], ids=str)
def test_a_cluster_in_the_foreground_ends_with_its_command_or_by_a_stop(
    shell: Shell, private_home: Home, end: signal.Signals | str
) -> None:
    words = [sys.executable, "-u", *CLI, "start", "-n", "1", "--name", "front"]
    env = private_home.environ()
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as command:
        try:
            assert command.stdout is not None
            assert any("Ctrl-C stops it." in line for line in command.stdout)
            assert [record.name for record in live_records()] == ["front"]
            if isinstance(end, str):
                assert shell(end).returncode == 0
            else:
                command.send_signal(end)
            status = command.wait(30)
        finally:
            command.kill()
    assert status == 0 or end == "stop"
    private_home.wait_until_empty()
    assert live_records() == []


def test_the_current_folder_is_not_searched_before_all_else(home: Home, tmp_path: Path) -> None:
    """It may be another user's; -m puts it first."""
    (tmp_path / "cloudpickle.py").write_text("print('run')\n")
    done = python(*CLI, "list", env=home.environ(), cwd=tmp_path)
    assert done.returncode == 0
    assert "run" not in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "statuses", "told"),
    [
        ("jaxcluster list > /dev/full", [1], ""),
        ("mkdir gone; cd gone; rmdir ../gone; jaxcluster start -n 1", [1], ""),
        ("JAXCLUSTER_RUNTIME_DIR=/proc/none/run jaxcluster list", [1], "JAXCLUSTER_RUNTIME_DIR"),
        ("JAXCLUSTER_RUNTIME_DIR=/dev/null jaxcluster start -n 1", [1], "JAXCLUSTER_RUNTIME_DIR"),
        ("set -o pipefail; jaxcluster list | head -c 0", [0, 1, 128 + signal.SIGPIPE], ""),
    ],
)
def test_what_the_system_refuses_is_said_in_a_line(
    home: Home, tmp_path: Path, line: str, statuses: list[int], told: str
) -> None:
    command = line.replace("jaxcluster ", f"{sys.executable} -P -m jaxcluster ")
    done = subprocess.run(
        ["bash", "-c", command],
        env=home.environ(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in statuses
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2, done.stderr
