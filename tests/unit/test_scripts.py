"""``jaxcluster run``: its words, its output and its status; the end that a script's process has."""

from __future__ import annotations

import asyncio
import atexit
import builtins
import concurrent.futures
import dataclasses
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jaxcluster import arguments, scripts, wire
from jaxcluster.engine import mainscript
from jaxcluster.errors import CellFailed, CellInterrupted, Divergence, LaunchError, UsageError
from jaxcluster.model.outputs import CellRecord

SCRIPT = wire.Script(["x/train.py"], "/home/me/x/train.py", "/home/me/x")


# --------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("line", "own", "rest"),
    [
        ("train.py", "", "train.py"),
        ("-n 4 train.py -n 5 --all", "-n 4", "train.py -n 5 --all"),
        ("--launcher ssh --hosts h1,h2 --direct train.py", "--launcher ssh --hosts h1,h2 --direct",
         "train.py"),
        ("--platform=cpu train.py --help", "--platform=cpu", "train.py --help"),
        ("-n 2 -m pkg.train -m x", "-n 2", "-m pkg.train -m x"),
        ("--all --logs out -- -odd.py a", "--all --logs out", "-odd.py a"),
        ("--help", "--help", ""),
        ("-n", "-n", ""),
    ],
)  # fmt: skip
def test_options_end_where_the_script_begins(line: str, own: str, rest: str) -> None:
    split = arguments.split_run(arguments.Parser("jaxcluster run"), line.split())
    assert split == (own.split(), rest.split())


def test_every_option_of_start_stands_before_a_script() -> None:
    """But for --detach, which is refused: a run has an end."""
    start = {*arguments.Parser("jaxcluster start").flags}
    assert {*arguments.Parser("jaxcluster run").flags} == start | {"--all", "--logs"}
    assert "--detach" not in arguments.Parser("jaxcluster run").format_help()


def test_help_has_an_example_of_each_option_with_a_script() -> None:
    told = arguments.Parser("jaxcluster run").format_help()
    assert "jaxcluster run -n 4 --logs out train.py" in told
    assert "%" not in told + arguments.Parser("jaxcluster start").format_help()
    assert "jaxcluster run --launcher ssh --hosts h1:2,user@h2:2 train.py" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "needs a script"),
        (["-n", "2", "-m"], "needs a script"),
        (["-m", "no-module"], "not the name of a module"),
        (["nowhere.py"], "There is no script nowhere.py"),
        (["--detach", "train.py"], "has no --detach"),
        (["-"], "takes a file or a module, not -"),
        (["."], ". is a folder"),
        (["latin.py"], "latin.py is not Python"),
    ],
)
def test_what_is_no_script_is_refused(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.py").write_bytes(b"name = '\xe9'\n")
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match=told) as error:
        scripts.run(words)
    assert "jaxcluster run -n 4 train.py" in str(error.value)


@pytest.mark.parametrize(
    ("starter", "environ"),
    [
        ("srun", {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "0"}),
        ("mpiexec", {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "0"}),
        ("mpiexec", {"PMI_SIZE": "3", "PMI_RANK": "0"}),
    ],
)
def test_one_of_several_processes_is_refused_and_the_others_say_nothing(
    starter: str, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"{starter} has started this command 3 times") as error:
        scripts.run(["-n", "2", "train.py"])
    assert f"Leave out {starter}: jaxcluster run --launcher auto" in error.value.hint
    for name in environ:
        if not name.endswith(("SIZE", "TASKS")):
            monkeypatch.setenv(name, "2")
    with pytest.raises(SystemExit) as ended:
        scripts.run(["-n", "2", "train.py"])
    assert ended.value.code == 2
    assert scripts.run(["-n", "2", "--launcher", "local", "--dry-run", "train.py"]) == 0
    for name in environ:
        monkeypatch.setenv(name, "1")
    assert scripts.run(["-n", "2", "--dry-run", "train.py"]) == 0


def test_a_script_is_read_as_python_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "latin.py").write_bytes(b"# coding: latin-1\nname = '\xe9'\n")
    (tmp_path / "link.py").symlink_to("real/latin.py")
    script, source = scripts.read_script(["link.py", "--steps", "3"])
    assert script.argv == ["link.py", "--steps", "3"]
    assert script.path == str(tmp_path / "link.py")
    assert script.folder == str(tmp_path / "real")  # Python follows the link for sys.path
    assert source.endswith("name = 'é'\n")


def test_a_module_is_left_to_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script, source = scripts.read_script(["-m", "packed", "a"])
    assert (script.module, script.argv[1:], script.folder) == ("packed", ["a"], str(tmp_path))
    assert source == ""


# --------------------------------------------------------------------------- what comes of it


def failed(ename: str, evalue: str) -> wire.CellReply:
    return wire.CellReply(1, 1, "error", 0.0, wire.ErrorInfo(ename, evalue, [f"{ename}: {evalue}"]))


@pytest.mark.parametrize(
    ("first", "dead", "error", "received", "status"),
    [
        (None, {}, None, 0, 0),
        (failed("SystemExit", "3"), {}, CellFailed(), 0, 3),
        (failed("ValueError", "3"), {}, CellFailed(), 0, 1),
        (None, {}, Divergence(), 0, 1),
        (failed("ValueError", ""), {1: wire.Death("", -9)}, None, 0, 137),
        (None, {0: wire.Death("", 0), 1: wire.Death("", 5)}, None, 0, 5),
        (None, {0: wire.Death("", 0)}, None, 0, 0),
        (None, {1: wire.Death("its host is lost")}, None, 0, 1),
        (None, {}, CellInterrupted(), signal.SIGINT, 130),
        (None, {}, CellInterrupted(), signal.SIGTERM, 143),
        (failed("SystemExit", "9"), {}, CellFailed(), signal.SIGTERM, 9),
        (None, {}, None, signal.SIGTERM, 0),  # its own handler has ended it well
    ],
)
def test_the_status_is_that_of_a_death_else_of_the_first_rank_that_failed(
    first: wire.CellReply | None, dead: Any, error: Any, received: int, status: int
) -> None:
    assert scripts.exit_status(first, dead, error, received) == status


def outputs(folder: Path, everything: bool = False) -> scripts.Outputs:
    made = scripts.Outputs(folder, everything)
    made.begin(2)
    return made


def text(rank: int, what: str, stream: str = "stdout") -> wire.RankOutput:
    return wire.RankOutput(rank, 1, "stream", {"name": stream, "text": what})


FOLDER = "All outputs: {}"
RECORD = CellRecord(1, 1, "", [0, 1])


def test_rank_0_is_shown_and_all_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank-7.txt").write_text("of an earlier run")
    (tmp_path / "rank-notes.txt").write_text("the user's")
    made = outputs(tmp_path)
    for what in (text(0, "a\r"), text(1, "b\n"), text(0, "c\n", "stderr"), text(0, "d")):
        made.take(RECORD, what)
    made.take(RECORD, failed("ValueError", "bad"))
    made.end()
    shown = capsys.readouterr()
    assert shown.out == "a\rd"
    assert shown.err == f"jaxcluster: ranks 0, 1. All outputs: {tmp_path}\nc\n"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "rank-0.txt": "a\nc\nd",  # read_text takes \r for an end of line
        "rank-1.txt": "b\nValueError: bad\n",
        "rank-notes.txt": "the user's",
    }
    assert made.failed == failed("ValueError", "bad")


def test_the_first_failure_counts_and_none_that_came_of_it(tmp_path: Path) -> None:
    made = outputs(tmp_path)
    ended = dataclasses.replace(failed("KeyboardInterrupt", ""), status="interrupted")
    for reply in (ended, failed("ValueError", "first"), failed("ValueError", "second")):
        made.take(RECORD, reply)
    assert made.failed == failed("ValueError", "first")


def test_what_is_no_text_is_shown_and_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "shown", "w", encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        outputs(tmp_path).take(RECORD, text(0, "\u00e9 \udc80\n"))
        monkeypatch.undo()
    assert (tmp_path / "shown").read_text() == "\\xe9 \\udc80\n"
    assert (tmp_path / "rank-0.txt").read_text() == "\u00e9 \\udc80\n"


def test_a_line_without_an_end_is_not_held_back_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scripts, "LINE_CHARS", 8)
    made = outputs(tmp_path, everything=True)
    for _ in range(3):
        made.take(RECORD, text(1, "12345"))
    assert capsys.readouterr().out == "[1] 1234512345\n"


def test_a_reader_that_has_gone_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, stopped = outputs(tmp_path), []
    made.stop = lambda: stopped.append(True)
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        for _ in range(2):
            made.take(RECORD, text(0, "a\n"))
        monkeypatch.undo()
    assert stopped == [True] and made.is_closed
    assert (tmp_path / "rank-0.txt").read_text() == "a\na\n"


def test_a_folder_of_outputs_is_named_after_the_script_as_far_as_names_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    long = wire.Script(["-m"], "", "/", "package." + "m" * 300)
    assert scripts.make_folder(None, long).name.startswith("jaxcluster-run-package.mmm")
    odd = wire.Script(["x"], "/a/b c;d.py", "/a")
    made = scripts.make_folder(None, odd)
    assert made.name.startswith("jaxcluster-run-b-c-d-")
    assert made.stat().st_mode & 0o777 == 0o700


class Started:
    """A cluster of a run, of whose cell the test is."""

    num_processes: int = 1

    def __init__(self) -> None:
        self.dead: dict[int, Any] = {}
        self.asked: list[str] = []
        self.handlers: list[Any] = []
        self.waits: list[BaseException] = [KeyboardInterrupt(), CellInterrupted("cell [1]")]

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        ask = self.asked.append
        return types.SimpleNamespace(stop=lambda: ask("stop"), wait=self.wait, done=False)

    def wait(self) -> None:
        raise self.waits.pop(0)

    def stop(self) -> None:
        self.handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        self.asked.append("end")


def test_a_signal_before_the_wait_stops_the_cell_and_none_disturbs_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started()
    monkeypatch.setattr(scripts.cluster, "start_spec", lambda *args: started)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    before = signal.getsignal(signal.SIGINT)
    status = scripts.run(["-n", "1", "--logs", "out", "train.py"])
    assert (status, started.asked) == (130, ["stop", "end"])
    assert started.handlers == [signal.SIG_IGN] * 2
    assert signal.getsignal(signal.SIGINT) is before


def test_lines_of_all_ranks_stay_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = outputs(tmp_path, everything=True)
    for what in (text(0, "a"), text(1, "b\nc"), text(0, "A\n"), text(1, "", "stderr")):
        made.take(RECORD, what)
    made.end()
    assert capsys.readouterr().out == "[1] b\n[0] aA\n[1] c\n"


def test_a_full_disk_is_told_once_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = outputs(tmp_path)
    made.folder = tmp_path / "gone"
    for _ in range(2):
        made.take(RECORD, text(0, "a\n"))
    shown = capsys.readouterr()
    assert shown.out == "a\na\n"
    assert shown.err.count("can't be written to (No such file or directory)") == 1


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_output_that_takes_nothing_is_told_once_and_the_files_go_on(
    stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = outputs(tmp_path)
    stopped: list[bool] = []
    made.stop = lambda: stopped.append(True)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, stream, full)
        for _ in range(2):
            made.take(RECORD, text(0, "a\n", stream))
        made.take(RECORD, text(1, "b\n", stream))
        monkeypatch.undo()
        full.flush()  # as at the end of the process
    assert (tmp_path / "rank-0.txt").read_text() == "a\na\n"
    assert (tmp_path / "rank-1.txt").read_text() == "b\n"
    assert not stopped and not made.is_closed
    if stream == "stdout":
        told = f"stdout can't be written to (No space left on device); the script goes on. {FOLDER}"
        assert capsys.readouterr().err.count(told.format(tmp_path)) == 1


def test_a_start_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise LaunchError("no host")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scripts.cluster, "start_spec", fail)
    (tmp_path / "train.py").touch()
    (tmp_path / "mine").mkdir()
    for words in (["-n", "2", "train.py"], ["-n", "2", "--logs", "mine", "train.py"]):
        with pytest.raises(LaunchError):
            scripts.run(words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "train.py"]


def test_what_the_script_said_itself_is_not_rewritten() -> None:
    own = ["On rank 0:", "ValueError: this cell is not in cell [1]"]
    error = CellFailed("", "Cell [1] is ended.", [0], "ValueError", own)
    assert scripts.tell(error, SCRIPT) == "\n".join([*own, "train.py is ended."])
    assert scripts.tell(Divergence("in cell [1]"), SCRIPT) == "Divergence: in train.py"


def test_messages_name_the_script() -> None:
    assert scripts.for_script("This cell waits.", SCRIPT) == "This script waits."
    told = "Rank 0 waited at cell [1] line 3. Cell [1] was stopped. The cell is ended. Cell [12]"
    assert scripts.for_script(told, SCRIPT) == (
        "Rank 0 waited at train.py line 3. train.py was stopped. The script is ended. Cell [12]"
    )


# --------------------------------------------------------------------------- the script's end


def test_the_end_is_that_of_a_process(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said: list[str] = []
    namespace: dict[str, Any] = {"__name__": "__main__"}
    register = atexit.register
    end = mainscript.End(namespace)
    atexit.register(said.append, "not any more")
    atexit.unregister(said.append)
    atexit.register(lambda: said.append("first registered"))
    atexit.register(lambda: said.append("last registered"))
    atexit.register(lambda: 1 / 0)
    event = threading.Event()
    thread = threading.Thread(target=lambda: (event.wait(30), said.append("thread")))
    namespace["pool"] = concurrent.futures.ThreadPoolExecutor(1)
    namespace["pool"].submit(event.set)
    namespace["folder"] = tempfile.TemporaryDirectory(dir=tmp_path)
    folder = Path(namespace["folder"].name)
    file = namespace["file"] = open(tmp_path / "file", "w")  # noqa: SIM115
    file.write("not flushed")
    namespace["itself"] = namespace
    thread.start()
    end.come(None)
    assert said == ["thread", "last registered", "first registered"]
    assert atexit.register is register
    assert namespace == {"__name__": "__main__"}
    assert not folder.exists()
    assert (tmp_path / "file").read_text() == "not flushed"
    file.close()
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_the_end_is_not_that_of_finalizers_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process's first one, made by the script, would have all others called, and never again."""
    monkeypatch.setattr(weakref.finalize, "_registered_with_atexit", False)
    called: list[str] = []
    before, end = Thing(), mainscript.End(namespace := {"thing": Thing()})
    for name in ("first", "last"):
        weakref.finalize(namespace["thing"], called.append, name)
    weakref.finalize(before, called.append, "not the script's").atexit = False
    end.come(None)
    assert called == ["last", "first"]  # in the order of a process's end
    del before
    weakref.finalize(Thing(), called.append, "later")
    assert called[2:] == ["not the script's", "later"]


class Thing:
    """To be finalized."""


def test_the_end_keeps_what_others_still_hold(tmp_path: Path) -> None:
    """As a module does that the script has imported."""
    end = mainscript.End({})
    folder = tempfile.TemporaryDirectory(dir=tmp_path)
    with open(tmp_path / "bytes", "wb") as file, open(tmp_path / "late", "wb") as late:
        file.write(b"not flushed")
        last = threading.Thread(target=lambda: (time.sleep(0.3), late.write(b"late")))
        threading.Thread(target=lambda: (time.sleep(0.2), last.start())).start()
        end.come(None)
        assert (tmp_path / "bytes").read_bytes() == b"not flushed"
        assert (tmp_path / "late").read_bytes() == b"late"
    assert not Path(folder.name).exists()


def test_daemons_are_not_waited_for_and_daemonic_processes_are_ended() -> None:
    event = threading.Event()
    end = mainscript.End({})
    thread = threading.Thread(target=event.wait, args=(60,), daemon=True)
    thread.start()
    child = multiprocessing.get_context("spawn").Process(
        target=time.sleep, args=(600,), daemon=True
    )
    child.start()
    try:
        end.come(None)
        assert thread.is_alive()
        assert child.exitcode == -signal.SIGTERM
    finally:
        event.set()
        child.kill()


def test_a_script_has_its_own_arguments_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = wire.Script(["train.py", "--x"], str(tmp_path / "train.py"), str(tmp_path))
    source = (
        "import asyncio, sys\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "found.append((sys.argv, sys.path[0], '' in sys.path, __name__, 'kept' in globals()))\n"
    )

    async def of_a_rank() -> None:
        loop = asyncio.get_running_loop()
        mainscript.run(script, source, {"kept": 1}, {})
        assert asyncio.get_running_loop() is loop

    found: list[Any] = []
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(InteractiveShell, "initialized", None)
    monkeypatch.setattr(builtins, "found", found, raising=False)
    asyncio.run(of_a_rank())
    assert found == [(["train.py", "--x"], str(tmp_path), False, "__main__", False)]


def test_after_an_error_threads_are_not_waited_for() -> None:
    event = threading.Event()
    end = mainscript.End({})
    thread = threading.Thread(target=event.wait, args=(100,))
    thread.start()
    try:
        end.come(0.01)
        assert thread.is_alive()
    finally:
        event.set()
        thread.join()


def test_a_forked_child_ends_with_all_that_it_has_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[Any] = []
    monkeypatch.setattr(os, "_exit", did.append)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", None)
        patched.setattr(sys, "stderr", types.SimpleNamespace(flush=lambda: did.append("flushed")))
        mainscript.end_child(3)
    assert did == ["flushed", 3]


@pytest.mark.parametrize(
    ("code", "status"), [(None, 0), (0, 0), (3, 3), (True, 1), (256, 0), (-1, 255), ("no", 1)]
)
def test_exit_statuses_are_pythons(
    code: Any, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mainscript._status(SystemExit(code)) == status
    assert capsys.readouterr().err == ("no\n" if code == "no" else "")
