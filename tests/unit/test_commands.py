"""A launcher's commands, with real processes: they end when they are to, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import processes_with, until

from jaxcluster.supervision import commands, folders
from jaxcluster.supervision.commands import Commands, Task

MARK = "JAXCLUSTER_TEST_COMMANDS"
STUBBORN = "trap '' TERM HUP; echo ready; while :; do sleep 0.1; done"


class Command:
    """A command, with all that has been said of it."""

    def __init__(self, *argv: str, **task: Any) -> None:
        self.said: dict[str, list[str]] = {"out": [], "err": []}
        self.ends: list[tuple[int, int | None, str]] = []
        self.commands = Commands()
        self.running = self.commands.run(
            Task(argv, **task),
            lambda name, line: self.said[name].append(line),
            lambda *ended: self.ends.append(ended),
        )

    def end(self) -> tuple[int, int | None, str]:
        self.commands.end()
        return self.wait()

    def wait(self) -> tuple[int, int | None, str]:
        until(lambda: self.ends, "the command's end is told")
        (found,) = self.ends
        return found

    def until(self, lines: int = 1) -> None:
        until(lambda: len(self.said["out"]) >= lines, "it runs")


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """All that a test starts carries it, and nothing that does is left."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    monkeypatch.delenv(MARK)
    until(lambda: not processes_with(MARK, value), f"gone: {processes_with(MARK, value)}", 10)


def cancelled(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def cancel_into(path: Path) -> list[str]:
    return ["sh", "-c", f"echo once >> {path}"]


# ---------------------------------------------------------------------------- a command by itself


def test_output_comes_line_by_line_and_then_the_end() -> None:
    command = Command("sh", "-c", "echo one; echo two >&2; printf 'no break'; exit 3")
    assert command.wait() == (3, None, "")
    assert command.said == {"out": ["one", "no break"], "err": ["two"]}
    assert Command("sh", "-c", "kill -9 $$").wait()[0] == -9


def test_a_command_that_is_not_there_can_not_be_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Command("/no/such/launcher", cancel=cancel_into(tmp_path / "cancelled"))
    assert cancelled(tmp_path / "cancelled") == []  # nothing was started


def test_bytes_of_no_encoding_and_endless_lines_come_through() -> None:
    script = r"printf '\377\r\n'; head -c 200000 /dev/zero | tr '\0' x; echo; echo end"
    command = Command("sh", "-c", script)
    assert command.wait()[0] == 0
    first, *long, last = command.said["out"]
    assert (first, last) == ("�", "end")
    assert "".join(long) == "x" * 200000


# ------------------------------------------------------------------------------- stop, and no more


def test_stop_closes_the_input_first() -> None:
    command = Command("sh", "-c", "echo ready; cat; echo bye; exit 4", keeps_stdin=True)
    command.until()
    assert command.end()[0] == 4
    assert command.said["out"] == ["ready", "bye"]


def test_what_ignores_sigterm_is_killed_with_its_group_and_cancelled_once(tmp_path: Path) -> None:
    cancel = tmp_path / "cancelled"
    script = f"({STUBBORN}) & {STUBBORN}"
    command = Command("sh", "-c", script, term_s=0.2, cancel=cancel_into(cancel))
    command.until(2)
    assert command.end() == (-signal.SIGKILL, 0, "")
    command.commands.end()
    assert cancelled(cancel) == ["once"]


def test_a_leader_that_ends_leaves_nobody_of_its_group(mark: str, tmp_path: Path) -> None:
    cancel = tmp_path / "cancelled"
    script = f"({STUBBORN}) & exit 0"
    assert Command("sh", "-c", script, term_s=0.2, cancel=cancel_into(cancel)).wait()[0] == 0
    assert processes_with(MARK, mark) == {}
    assert cancelled(cancel) == ["once"]


def test_what_a_cancel_command_says_is_told_where_it_has_failed(mark: str) -> None:
    """A process that it leaves behind, with its output still open, holds nothing up."""
    script = "sleep 1000 & echo noise >&2; echo no answer >&2; echo >&2; exit 3"
    assert Command("true", cancel=["sh", "-c", script]).wait() == (0, 3, "no answer")
    (left,) = processes_with(MARK, mark)
    os.kill(left, signal.SIGKILL)
    said = "/no/such/scancel: No such file or directory"
    assert Command("true", cancel=["/no/such/scancel"]).wait() == (0, 127, said)


# -------------------------------------------------------------------- the notebook's process ends

NOTEBOOK = """
import json, os, sys, time
from jaxcluster.supervision.commands import Commands, Task
from jaxcluster.supervision.processes import is_alive, process_token
folder, outlives, *tasks = json.loads(sys.argv[1])
def say(*words): os.write(1, (" ".join(map(str, words)) + chr(10)).encode())
commands = Commands(outlives)
commands.keep(folder, [["touch", folder + ".over"]])
running = [commands.run(Task(**task), say, say) for task in tasks]
{more}
say("watched")
time.sleep(1000)
"""


@contextlib.contextmanager
def notebook(
    folder: Path, *tasks: Mapping[str, Any], more: str = "", outlives: bool = False
) -> Iterator[subprocess.Popen[str]]:
    folder.mkdir(exist_ok=True)
    about = json.dumps([str(folder), outlives, *tasks])
    source = NOTEBOOK.format(more=textwrap.dedent(more))
    with subprocess.Popen(
        [sys.executable, "-c", source, about],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.kill()


def wait_for(process: subprocess.Popen[str], *wanted: str) -> str:
    """The last of the lines that hold these words, which come in any order."""
    assert process.stdout is not None
    left = list(wanted)
    for line in process.stdout:
        for word in {word for word in left if word in line}:
            left.remove(word)
        if not left:
            return line
    raise AssertionError(f"ended without {left}")


def ends(mark: str, within_s: float = 10) -> None:
    until(lambda: not processes_with(MARK, mark), "all have ended", within_s)


@pytest.mark.parametrize("script", [STUBBORN, "echo ready; cat"])
@pytest.mark.parametrize("has_input", [True, False])
def test_a_killed_notebook_takes_its_commands_along(
    mark: str, tmp_path: Path, script: str, has_input: bool
) -> None:
    cancel = tmp_path / "cancelled"
    script = script if has_input else script.replace("cat", "sleep 1000")
    task = {"argv": ["sh", "-c", script], "keeps_stdin": has_input, "cancel": cancel_into(cancel)}
    with notebook(tmp_path / "main", task, task) as process:
        wait_for(process, "ready", "ready", "watched")
        process.kill()
        ends(mark)
    assert cancelled(cancel) == ["once", "once"]
    assert (tmp_path / "main.over").exists()


def test_a_fork_of_the_notebook_that_holds_the_pipes_keeps_nothing_alive(
    mark: str, tmp_path: Path
) -> None:
    """As multiprocessing's workers do: the commands' input does not end with the notebook."""
    task = {"argv": ["sh", "-c", "echo ready; cat"], "keeps_stdin": True}
    more = """
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            time.sleep(60)
            os._exit(0)
        say("child", child)
    """
    with notebook(tmp_path / "main", task, more=more) as process:
        child = int(wait_for(process, "child").split()[1])
        try:
            process.kill()
            until(lambda: set(processes_with(MARK, mark)) <= {child}, "all but the fork ended", 10)
        finally:
            os.kill(child, signal.SIGKILL)


DETACH = "commands.detach([folder])"


def test_detached_commands_outlive_the_notebook_and_end_by_themselves(
    mark: str, tmp_path: Path
) -> None:
    """They go on to read and write: neither an end nor a closed pipe reaches them."""
    go, cancel = tmp_path / "go", tmp_path / "cancelled"
    wait = f"while [ ! -e {go} ]; do echo noise || exit 1; sleep 0.02; done"
    script = f"exec 3<&0; (cat <&3; touch {tmp_path}/end) & echo ready; {wait}"
    script += f"; echo over > {tmp_path}/over"
    task = {"argv": ["sh", "-c", script], "keeps_stdin": True, "cancel": cancel_into(cancel)}
    with notebook(tmp_path / "main", task, more=DETACH, outlives=True) as process:
        wait_for(process, "ready", "watched")
        process.kill()
        process.wait()
        with pytest.raises(AssertionError):
            ends(mark, 1.5)
        assert cancelled(cancel) == []
        go.touch()
        ends(mark)
    assert (tmp_path / "over").exists() and not (tmp_path / "end").exists()
    assert cancelled(cancel) == ["once"]
    assert (tmp_path / "main.over").exists()


def test_detached_commands_end_when_nobody_can_find_them(mark: str, tmp_path: Path) -> None:
    """A cluster without commands, as Kubernetes' is, is kept until its folder is gone."""
    cancel, sockets, folders = tmp_path / "cancelled", [], []
    with contextlib.ExitStack() as opened:
        for number, num_tasks in enumerate((0, 1, 1)):
            folders.append(tmp_path / f"cluster-{number}")
            sockets.append(tmp_path / f"ssh-{number}.sock")
            script = f"touch {sockets[-1]}; echo ready; cat"
            argv = ["sh", "-c", script]
            task = {"argv": argv, "keeps_stdin": True, "socket": str(sockets[-1])}
            tasks = [task | {"cancel": cancel_into(cancel)}] * num_tasks
            process = opened.enter_context(
                notebook(folders[-1], *tasks, more=DETACH, outlives=True)
            )
            wait_for(process, "watched", *["ready"] * num_tasks)
            process.kill()
            process.wait()
        kept = processes_with(MARK, mark)
        time.sleep(1.5)
        assert kept.keys() <= processes_with(MARK, mark).keys()  # a shell may just have begun cat
        folders[0].rmdir()
        folders[1].rmdir()
        folders[1].mkdir()  # another one in its place
        sockets[2].unlink()
        ends(mark)
    assert cancelled(cancel) == ["once"] * 2


def test_a_clusters_files_are_kept_young(tmp_path: Path) -> None:
    own = [tmp_path, tmp_path / "launch", tmp_path / "launch" / "job.sh"]
    own[1].mkdir()
    own[2].touch()
    for path in own:
        os.utime(path, (86400, 86400))
    folders.keep_young([str(tmp_path)])
    assert all(path.stat().st_mtime != 86400 for path in own)


def test_the_keeper_imports_nothing_that_takes_time() -> None:
    source = commands.SOURCE.replace("main()", "print(*sys.modules)")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source], capture_output=True, text=True, check=True
    )
    found = {name for name in done.stdout.split() if name.startswith("jaxcluster.")}
    assert {name.split(".")[1] for name in found} == {"supervision"}
    assert not {"zmq", "numpy", "jax", "asyncio"} & set(done.stdout.split())
