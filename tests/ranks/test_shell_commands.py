"""``jaxcluster start|list|stop|doctor`` in a shell."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import GONE_S, Home, python

import jaxcluster
from jaxcluster.cluster import attach, live_records

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.one_machine("a shell's commands find the clusters of this machine"),
]

CLI = ("-m", "jaxcluster.cli")


@pytest.fixture
def shell(private_home: Home) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command to its end."""
    return lambda *words: python(*CLI, *words, env=private_home.environ())


class Foreground:
    """``jaxcluster start`` without --detach: it stays until Ctrl-C."""

    def __init__(self, home: Home, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", *CLI, "start", *words],
            env=home.environ(),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def wait_for(self, part: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if part in line:
                return
        raise AssertionError(f"it ended without {part!r}: {self.lines}")

    def close(self) -> None:
        self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process.wait(30)


@pytest.fixture
def foreground(private_home: Home) -> Iterator[Callable[..., Foreground]]:
    made: list[Foreground] = []

    def start(*words: str) -> Foreground:
        made.append(Foreground(private_home, *words))
        return made[-1]

    yield start
    for each in made:
        each.close()


# --------------------------------------------------------------------------- help and errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("levitate", "There is no command 'levitate'."),
        ("start -n four", "-n must be a whole number from 1 up, not 'four'"),
        ("start --timeout nan", "--timeout must be more than 0 seconds, not nan."),
        ("start --name ../x", "'../x' can't be a cluster's name"),
        ("stop nowhere", "NoCluster: There is no cluster 'nowhere' here"),
        ("stop", "NoCluster: "),
        ("stop a --all", "Give a cluster's name or --all, not both."),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(
    shell: Callable[..., subprocess.CompletedProcess[str]], words: str, message: str
) -> None:
    done = shell(*words.split())
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert words == "levitate" or "%jaxcluster" not in done.stderr  # what to type is a shell's


def test_a_dry_run_starts_nothing(
    shell: Callable[..., subprocess.CompletedProcess[str]], private_home: Home
) -> None:
    done = shell("start", "-n", "3", "--dry-run")
    assert done.returncode == 0
    assert "3 processes on 1 host, platform cpu" in done.stdout
    assert private_home.processes() == {}


# --------------------------------------------------------------------------- life


def test_a_detached_cluster_is_listed_attached_to_and_stopped(
    shell: Callable[..., subprocess.CompletedProcess[str]], private_home: Home
) -> None:
    started = shell("start", "-n", "2", "--name", "kept", "--detach")
    assert started.returncode == 0, started.stderr
    first, how, until_when = started.stdout.splitlines()
    assert first.startswith("Cluster 'kept': ranks 0, 1, 1 cpu device per rank (2 in all, cpu)")
    assert how == "In a notebook: %load_ext jaxcluster, then %jaxcluster attach kept"
    assert until_when == "It runs until: jaxcluster stop kept"

    listed = shell("list").stdout.splitlines()
    assert listed[0].split()[:2] == ["name", "ranks"]
    assert "kept" in listed[1]
    assert "detached" in listed[1]

    attached = attach("kept")
    assert attached.run("print(40 + 2)", show=False).stdout(1) == "42\n"
    attached.close()

    stopped = shell("stop", "kept")
    assert stopped.returncode == 0
    assert re.fullmatch(r"Stopped 'kept': ranks 0, 1, \d\.\d s\.\n", stopped.stdout)
    private_home.wait_until_empty()
    assert shell("list").stdout == "No cluster is running. Start one: %jaxcluster start -n 4\n"


def test_stop_all_ends_all(
    shell: Callable[..., subprocess.CompletedProcess[str]], private_home: Home
) -> None:
    for name in ("a", "b"):
        assert shell("start", "-n", "1", "--name", name, "--detach").returncode == 0
    done = shell("stop", "--all")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "Stopped 'a'",
        "Stopped 'b'",
    ]
    private_home.wait_until_empty()


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_cluster_in_the_foreground_ends_with_its_command(
    foreground: Callable[..., Foreground], private_home: Home, sign: signal.Signals
) -> None:
    command = foreground("-n", "2", "--name", "front")
    command.wait_for("Ctrl-C stops it.")
    assert [r.name for r in live_records()] == ["front"]
    command.process.send_signal(sign)
    assert command.process.wait(30) == 0
    private_home.wait_until_empty()
    assert live_records() == []


def test_a_cluster_in_the_foreground_may_be_stopped_from_elsewhere(
    foreground: Callable[..., Foreground],
    shell: Callable[..., subprocess.CompletedProcess[str]],
    private_home: Home,
) -> None:
    command = foreground("-n", "1", "--name", "front")
    command.wait_for("Ctrl-C stops it.")
    assert shell("stop").returncode == 0
    began = time.monotonic()
    command.process.wait(30)
    assert time.monotonic() - began < 30
    private_home.wait_until_empty(GONE_S)


@pytest.mark.parametrize("module", ["jaxcluster", "jaxcluster.cli"])
def test_version_and_help_are_no_errors(home: Home, module: str) -> None:
    for words, first in {
        ("--version",): f"jaxcluster {jaxcluster.__version__}",
        ("-V",): f"jaxcluster {jaxcluster.__version__}",
        ("start", "--help"): "usage: jaxcluster start",
        ("start", "-n", "x", "-h"): "usage: jaxcluster start",
        ("stop", "--help"): "usage: jaxcluster stop",
        ("list", "-h"): "usage: jaxcluster list",
        ("doctor", "--help"): "usage: jaxcluster doctor",
    }.items():
        done = python("-m", module, *words, env=home.environ())
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(first)


def test_the_current_folder_is_not_searched_before_all_else(home: Home, tmp_path: Path) -> None:
    """It may be another user's; -m puts it first."""
    (tmp_path / "cloudpickle.py").write_text("print('run')\n")
    done = python("-m", "jaxcluster", "list", env=home.environ(), cwd=tmp_path)
    assert done.returncode == 0
    assert "run" not in done.stdout.splitlines()


@pytest.mark.parametrize("words", ["list", "start --help"])
def test_output_that_nobody_reads_is_no_error(home: Home, words: str) -> None:
    command = f"set -o pipefail; {sys.executable} -m jaxcluster.cli {words} | head -c 0"
    done = subprocess.run(
        ["bash", "-c", command], env=home.environ(), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode in (0, 1, 128 + signal.SIGPIPE)


@pytest.mark.parametrize("path", ["/proc/none/run", "/dev/null"])
def test_a_runtime_folder_that_can_not_be_used_says_so(home: Home, path: str) -> None:
    for words in (["list"], ["start", "-n", "1"], ["stop", "x"]):
        done = python(*CLI, *words, env=home.environ(JAXCLUSTER_RUNTIME_DIR=path))
        assert done.returncode == 1
        assert "JAXCLUSTER_RUNTIME_DIR" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_full_disk_and_a_folder_that_is_gone_are_said_in_a_line(
    home: Home, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    for command in (
        f"{sys.executable} -m jaxcluster.cli list > /dev/full",
        f"cd {tmp_path}/gone; rmdir ../gone; {sys.executable} -P -m jaxcluster.cli start -n 1",
    ):
        done = subprocess.run(
            ["bash", "-c", command], env=home.environ(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) <= 2, done.stderr
