"""The guard, with real processes: what it runs ends when it is to, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import processes_with, until

from jaxcluster.supervision import starting
from jaxcluster.supervision.guard import Task
from jaxcluster.supervision.guarded import GuardedCommands

MARK = "JAXCLUSTER_TEST_GUARD"
STUBBORN = "trap '' TERM HUP; echo ready; while :; do sleep 0.1; done"


class Watched:
    """Guarded commands, with all that has been said of them."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Mapping[str, Any]]] = []
        self.guarded = GuardedCommands(lambda id, event: self.events.append((id, event)))

    def run(self, *argv: str, **task: Any) -> int:
        return self.guarded.run(Task(list(argv), **task))

    def lines(self, id: int, name: str = "out") -> list[str]:
        return [e[name] for i, e in list(self.events) if i == id and name in e]

    def ended(self, id: int) -> list[Mapping[str, Any]]:
        return [e for i, e in list(self.events) if i == id and "ended" in e]

    def wait_for_end(self, id: int) -> Any:
        until(lambda: self.ended(id), "the command's end is told")
        return self.ended(id)[0]["ended"]


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """All that a test starts carries it, and nothing that does is left."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    yield value
    monkeypatch.delenv(MARK)
    until(lambda: not processes_with(MARK, value), f"gone: {processes_with(MARK, value)}", 10)


@pytest.fixture
def watched(mark: str) -> Iterator[Watched]:
    made = Watched()
    yield made
    made.guarded.close()


def cancelled(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def cancel_into(path: Path) -> list[str]:
    return ["sh", "-c", f"echo once >> {path}"]


# ---------------------------------------------------------------------------- a command by itself


def test_output_comes_line_by_line_and_then_the_end(watched: Watched) -> None:
    id = watched.run("sh", "-c", "echo one; echo two >&2; printf 'no break'; exit 3")
    assert watched.wait_for_end(id) == 3
    assert watched.lines(id) == ["one", "no break"]
    assert watched.lines(id, "err") == ["two"]
    assert "ended" in watched.events[-1][1]
    assert len(watched.ended(id)) == 1


def test_a_signal_is_told_as_a_negative_code(watched: Watched) -> None:
    assert watched.wait_for_end(watched.run("sh", "-c", "kill -9 $$")) == -9


def test_a_command_that_is_not_there_is_told_as_a_shell_tells_it(
    watched: Watched, tmp_path: Path
) -> None:
    cancel = tmp_path / "cancelled"
    id = watched.run("/no/such/launcher", cancel=cancel_into(cancel))
    assert watched.wait_for_end(id) == 127
    assert watched.lines(id, "err") == ["/no/such/launcher: No such file or directory"]
    assert watched.wait_for_end(watched.run(str(tmp_path))) == 126
    assert cancelled(cancel) == []  # nothing was started


def test_bytes_of_no_encoding_and_endless_lines_come_through(watched: Watched) -> None:
    id = watched.run(
        "sh", "-c", r"printf '\377\r\n'; head -c 200000 /dev/zero | tr '\0' x; echo; echo end"
    )
    assert watched.wait_for_end(id) == 0
    first, *long, last = watched.lines(id)
    assert (first, last) == ("�", "end")
    assert "".join(long) == "x" * 200000


def test_environment_is_added_and_dropped(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = watched.run(
        "sh", "-c", f"echo ${{ADDED}} ${{{MARK}:-none}}", env={"ADDED": "a b"}, drop=[MARK]
    )
    watched.wait_for_end(id)
    assert watched.lines(id) == ["a b none"]


def test_a_command_has_no_input_and_the_default_signals(watched: Watched) -> None:
    id = watched.run(
        sys.executable,
        "-c",
        "import signal, sys; print(repr(sys.stdin.read()), *(signal.getsignal(s).name for s in "
        "(signal.SIGHUP, signal.SIGTERM)))",
    )
    watched.wait_for_end(id)
    assert watched.lines(id) == ["'' SIG_DFL SIG_DFL"]


def test_several_commands_run_at_once_and_end_apart(watched: Watched) -> None:
    ids = [
        watched.run("sh", "-c", f"echo {n}; read line; exit {n}", keeps_stdin=True)
        for n in range(5)
    ]
    for n, id in enumerate(ids):
        until(lambda id=id: watched.lines(id), "it runs")  # type: ignore[misc]
        assert watched.lines(id) == [str(n)]
    watched.guarded.stop(ids[3])
    assert watched.wait_for_end(ids[3]) == 3
    assert not any(watched.ended(id) for id in ids if id != ids[3])


# ------------------------------------------------------------------------------- stop, and no more


def test_stop_closes_the_input_first(watched: Watched) -> None:
    id = watched.run("sh", "-c", "echo ready; cat; echo bye; exit 4", keeps_stdin=True)
    until(lambda: watched.lines(id), "it runs")
    watched.guarded.stop(id)
    assert watched.wait_for_end(id) == 4
    assert watched.lines(id) == ["ready", "bye"]


def test_what_ignores_sigterm_is_killed_with_its_group_and_cancelled_once(
    watched: Watched, tmp_path: Path
) -> None:
    cancel = tmp_path / "cancelled"
    id = watched.run(
        "sh", "-c", f"({STUBBORN}) & {STUBBORN}", term_s=0.2, cancel=cancel_into(cancel)
    )
    until(lambda: len(watched.lines(id)) == 2, "both run")
    watched.guarded.stop(id)
    watched.guarded.stop(id)
    assert watched.wait_for_end(id) == -signal.SIGKILL
    assert watched.ended(id)[0]["cancelled"] == 0
    watched.guarded.close()
    assert cancelled(cancel) == ["once"]


def test_what_ends_in_its_time_after_sigterm_is_not_killed(
    watched: Watched, tmp_path: Path
) -> None:
    """The leader is asked first, then the others of its group, then sessions of their own."""
    told = tmp_path / "told"

    def slow(who: str, code: int) -> str:
        trap = f"trap 'sleep 0.3; echo {who} >> {told}; exit {code}' TERM; echo {who}"
        return f"{trap}; while :; do sleep 0.01; done"

    session = f'setsid sh -c "{slow("session", 0)}" 2>/dev/null &'  # the guard reads no more
    id = watched.run("sh", "-c", f"{session} ({slow('other', 0)}) & {slow('leader', 4)}", term_s=30)
    until(lambda: len(watched.lines(id)) == 3, "all run")
    watched.guarded.stop(id)
    assert watched.wait_for_end(id) == 4
    assert told.read_text().split() == ["leader", "other"]
    watched.guarded.close()
    assert told.read_text().split() == ["leader", "other", "session"]


def test_a_leader_that_ends_leaves_nobody_of_its_group(watched: Watched, mark: str) -> None:
    id = watched.run("sh", "-c", f"({STUBBORN}) & exit 0", term_s=0.2)
    assert watched.wait_for_end(id) == 0
    assert len(processes_with(MARK, mark)) == 1  # the guard itself


def test_a_session_of_its_own_does_not_outlive_the_guard(
    watched: Watched, mark: str, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    script = f"touch {there}; {STUBBORN}"
    id = watched.run("sh", "-c", f'setsid sh -c "{script}" & until [ -e {there} ]; do :; done')
    watched.wait_for_end(id)
    assert len(processes_with(MARK, mark)) > 1
    watched.guarded.close()
    assert processes_with(MARK, mark) == {}


def test_a_command_that_ended_by_itself_is_cancelled_once_too(
    watched: Watched, tmp_path: Path
) -> None:
    cancel = tmp_path / "cancelled"
    id = watched.run("true", cancel=cancel_into(cancel))
    watched.wait_for_end(id)
    watched.guarded.stop(id)
    watched.guarded.close()
    assert cancelled(cancel) == ["once"]


def test_a_cancel_command_that_can_not_run_is_told(watched: Watched) -> None:
    id = watched.run("true", cancel=["/no/such/scancel"])
    assert watched.wait_for_end(id) == 0
    said = "/no/such/scancel: No such file or directory"
    assert watched.lines(id, "err") == [said]
    assert watched.ended(id)[0] == {"id": id, "ended": 0, "cancelled": 127, "said": said}


def test_what_a_cancel_command_says_is_told_where_it_has_failed(watched: Watched) -> None:
    """A process that it leaves behind, with its output still open, holds nothing up."""
    script = "sleep 1000 & echo noise >&2; echo no answer >&2; echo >&2; exit 3"
    id = watched.run("true", cancel=["sh", "-c", script])
    watched.wait_for_end(id)
    assert watched.ended(id)[0] == {"id": id, "ended": 0, "cancelled": 3, "said": "no answer"}


def test_a_notebook_that_does_not_read_slows_the_command_and_loses_nothing(mark: str) -> None:
    gate = threading.Event()
    lines: list[str] = []
    over = threading.Event()

    def slow(id: int, event: Mapping[str, Any]) -> None:
        gate.wait(60)
        if "out" in event:
            lines.append(event["out"])
        if "ended" in event:
            over.set()

    guarded = GuardedCommands(slow)
    guarded.run(
        Task(
            [
                "sh",
                "-c",
                "i=0; while [ $i -lt 3000 ]; do echo $i-" + "x" * 900 + "; i=$((i+1)); done",
            ]
        )
    )
    gate.set()
    assert over.wait(60)
    assert [line.split("-")[0] for line in lines] == [str(i) for i in range(3000)]
    guarded.close()


# -------------------------------------------------------------------- the notebook's process ends

NOTEBOOK = """
import json, os, sys, time
from jaxcluster.supervision.guarded import GuardedCommands
from jaxcluster.supervision.guard import Task
guarded = GuardedCommands(lambda id, event: print(json.dumps(event), flush=True))
for task in json.loads(sys.argv[1]):
    guarded.run(Task(**task))
{more}
time.sleep(1000)
"""


def notebook(*tasks: Mapping[str, Any], more: str = "") -> subprocess.Popen[str]:
    source = NOTEBOOK.format(more=textwrap.dedent(more))
    return subprocess.Popen(
        [sys.executable, "-c", source, json.dumps(tasks)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], what: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if what in line:
            return
    raise AssertionError(f"ended without {what}")


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_notebook_killed_takes_its_commands_along(
    mark: str, tmp_path: Path, stubborn: bool
) -> None:
    cancel = tmp_path / "cancelled"
    script = STUBBORN if stubborn else "echo ready; cat"
    task = {"argv": ["sh", "-c", script], "keeps_stdin": True, "cancel": cancel_into(cancel)}
    with notebook(task, task) as process:
        wait_for(process, "ready")
        wait_for(process, "ready")
        process.kill()
        until(lambda: not processes_with(MARK, mark), "all have ended", 10)
    assert cancelled(cancel) == ["once", "once"]


def test_commands_end_where_notebook_and_guard_are_killed_together(mark: str) -> None:
    """As the system does that is short of memory. Nobody is left but the kernel."""
    task = {"argv": ["sleep", "1000"]}  # no input whose end would end it
    more = "print(json.dumps({'guard': guarded.pid}), flush=True)"
    with notebook(task, more=more) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        (guard_pid,) = [line["guard"] for line in lines if "guard" in line]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # neither sees the other's end
            for pid in (guard_pid, process.pid):
                os.kill(pid, number)
        until(lambda: not processes_with(MARK, mark), "the command has ended", 10)


def test_a_fork_of_the_notebook_that_holds_the_pipes_keeps_nothing_alive(
    mark: str, tmp_path: Path
) -> None:
    """As multiprocessing's workers do: the guard's input does not end with the notebook."""
    cancel = tmp_path / "cancelled"
    task = {
        "argv": ["sh", "-c", "echo ready; cat"],
        "keeps_stdin": True,
        "cancel": cancel_into(cancel),
    }
    more = """
        child = os.fork()
        if child == 0:
            os.environ.clear()
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            time.sleep(60)
            os._exit(0)
        print(json.dumps({"child": child}), flush=True)
    """
    with notebook(task, more=more) as process:
        assert process.stdout is not None
        said = [json.loads(process.stdout.readline()) for _ in range(3)]
        child = next(event["child"] for event in said if "child" in event)
        try:
            process.kill()
            # The fork carries the mark as well: it is the only one left.
            until(lambda: set(processes_with(MARK, mark)) <= {child}, "all but the fork ended", 10)
            assert cancelled(cancel) == ["once"]
        finally:
            os.kill(child, signal.SIGKILL)


def test_detached_commands_outlive_the_notebook_and_end_by_themselves(
    mark: str, tmp_path: Path
) -> None:
    go, cancel, folder = tmp_path / "go", tmp_path / "cancelled", tmp_path / "main"
    folder.mkdir()
    script = f"echo ready; while [ ! -e {go} ]; do echo noise; sleep 0.02; done; echo over"
    task = {"argv": ["sh", "-c", script], "keeps_stdin": True, "cancel": cancel_into(cancel)}
    look_after = f"from pathlib import Path\nguarded.look_after([Path({str(folder)!r})])"
    detach = "guarded.detach(); time.sleep(0.5); print('left', flush=True)"
    with notebook(task, more=f"{look_after}\n{detach}") as process:
        wait_for(process, "left")
        process.kill()
        process.wait()
        with pytest.raises(AssertionError):
            until(lambda: not processes_with(MARK, mark), "ended", 1.5)
        assert cancelled(cancel) == []
        assert folder.exists()
        go.touch()
        until(lambda: not processes_with(MARK, mark), "all have ended", 10)
    assert cancelled(cancel) == ["once"]
    assert not folder.exists()  # nobody else is left to remove it


@pytest.mark.parametrize("end", ["left", "closed"])
def test_a_detached_guard_takes_other_commands_until_its_notebook_has_left(
    mark: str, end: str
) -> None:
    """Hosts were not reached for long, all logins have ended, and the ranks get new ones."""
    watched = Watched()
    first = watched.run("true")
    watched.guarded.detach()
    watched.wait_for_end(first)
    other = watched.run("sh", "-c", "sleep 0.6")  # some turns of its loop
    watched.wait_for_end(other)
    second = watched.run("sh", "-c", "echo again")
    assert watched.wait_for_end(second) == 0 and watched.lines(second) == ["again"]
    if end == "left":
        watched.guarded.leave()
        assert watched.guarded._process.wait(10) == 0
    watched.guarded.close()


@pytest.mark.parametrize("what", ["folder", "another in its place", "socket"])
def test_detached_commands_end_when_nobody_can_find_them(
    mark: str, tmp_path: Path, what: str
) -> None:
    folder, path, cancel = tmp_path / "main", tmp_path / "ssh.sock", tmp_path / "cancelled"
    folder.mkdir()
    task = {
        "argv": ["sh", "-c", f"touch {path}; echo ready; cat"],
        "keeps_stdin": True,
        "cancel": cancel_into(cancel),
        "socket": str(path),
    }
    detach = f"from pathlib import Path\nguarded.detach([Path({str(folder)!r})])"
    with notebook(task, more=f"{detach}; time.sleep(0.5); print('left', flush=True)") as process:
        wait_for(process, "left")
        process.kill()
        process.wait()
        with pytest.raises(AssertionError):
            until(lambda: not processes_with(MARK, mark), "ended", 1.5)
        if what == "socket":
            path.unlink()
        else:
            folder.rmdir()
        if what == "another in its place":
            folder.mkdir()
        until(lambda: not processes_with(MARK, mark), "all have ended", 10)
    assert cancelled(cancel) == ["once"]


@pytest.mark.parametrize("taken", [False, True])
def test_the_folders_of_a_notebook_that_was_killed_go_unless_another_has_their_names(
    mark: str, tmp_path: Path, taken: bool
) -> None:
    folder, gone = tmp_path / "main", tmp_path / "gone"
    (folder / "launch").mkdir(parents=True)
    (folder / "launch" / "job.sh").touch()
    task = {"argv": ["sh", "-c", "echo ready; cat; while [ ! -e $GO ]; do sleep 0.01; done"]}
    task |= {"keeps_stdin": True, "env": {"GO": str(gone)}, "stdin_s": 20.0}
    more = f"from pathlib import Path\nguarded.look_after([Path({str(folder)!r})])"
    with notebook(task, more=f"{more}\nguarded.run(Task(['echo', 'told']))") as process:
        wait_for(process, "told")
        process.kill()
    if taken:
        folder.rename(tmp_path / ".dead-1")
        folder.mkdir()
    gone.touch()
    until(lambda: not processes_with(MARK, mark), "all have ended", 10)
    assert folder.exists() == taken
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".dead-guard")] == []


def test_the_folders_of_a_notebook_that_goes_on_are_its_own(
    watched: Watched, tmp_path: Path
) -> None:
    watched.guarded.look_after([tmp_path])
    watched.guarded.close()
    assert tmp_path.exists()


def test_a_killed_notebooks_folders_go_also_where_the_kernel_closes_its_pipes_first(
    watched: Watched, tmp_path: Path
) -> None:
    """On a busy machine a process that has no files any more may still be there as a parent."""
    folder = tmp_path / "saved"
    folder.mkdir()
    watched.guarded.look_after([folder])
    assert watched.guarded._process.stdin is not None
    watched.guarded._process.stdin.close()
    until(lambda: watched.guarded._process.poll() is not None, "the guard has ended", 10)
    assert not folder.exists()


# ------------------------------------------------------------------------- the guard itself ends


def test_sigterm_to_the_guard_ends_its_commands_in_order(watched: Watched, tmp_path: Path) -> None:
    cancel = tmp_path / "cancelled"
    id = watched.run("sh", "-c", "echo ready; cat", keeps_stdin=True, cancel=cancel_into(cancel))
    until(lambda: watched.lines(id), "it runs")
    os.kill(watched.guarded.pid, signal.SIGTERM)
    assert watched.wait_for_end(id) == 0
    watched.guarded.close()
    assert cancelled(cancel) == ["once"]


def test_a_guard_that_was_killed_is_told_and_its_work_is_done(
    watched: Watched, tmp_path: Path, mark: str
) -> None:
    cancel = tmp_path / "cancelled"
    id = watched.run("sh", "-c", STUBBORN, term_s=0.2, cancel=cancel_into(cancel))
    until(lambda: watched.lines(id), "it runs")
    os.kill(watched.guarded.pid, signal.SIGKILL)
    assert watched.wait_for_end(id) is None
    until(lambda: not processes_with(MARK, mark), "all have ended", 10)
    assert cancelled(cancel) == ["once"]
    with pytest.raises(BrokenPipeError):
        watched.run("true")


def test_the_terminal_s_signals_are_not_for_the_guard(watched: Watched) -> None:
    id = watched.run("cat", keeps_stdin=True)
    until(lambda: any(i == id for i, _ in watched.events), "it runs")
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(watched.guarded.pid, number)
    other = watched.run("true")
    assert watched.wait_for_end(other) == 0
    assert not watched.ended(id)


def test_the_guard_imports_nothing_that_takes_time() -> None:
    source = starting.GUARD.replace("main()", "print(*sys.modules)")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {name for name in done.stdout.split() if name.startswith("jaxcluster.")} == {
        "jaxcluster.supervision",
        *(f"jaxcluster.supervision.{m}" for m in ("ends", "folders", "guard", "loop", "processes")),
    }
    assert not {"zmq", "numpy", "jax", "asyncio"} & set(done.stdout.split())
