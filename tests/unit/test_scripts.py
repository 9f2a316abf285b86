"""``jaxcluster run``: its words, its output, its signals and its status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster import scripts, wire
from jaxcluster.errors import LaunchError, UsageError
from jaxcluster.options import arguments


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The command has them to its process's end."""
    before = [signal.getsignal(number) for number in scripts.SIGNALS]
    yield
    for number, handler in zip(scripts.SIGNALS, before, strict=True):
        signal.signal(number, handler)


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


def test_help_is_as_it_is_typed_in_a_shell() -> None:
    told = arguments.Parser("jaxcluster run").format_help()
    assert "For example: --logs out" in told
    assert "%" not in told + arguments.Parser("jaxcluster start").format_help()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "needs a script"),
        (["-n", "2", "-m"], "needs a script"),
        (["nowhere.py"], "nowhere.py can't be read: .* No such file"),
        (["--detach", "train.py"], "there is no --detach"),
        (["latin.py"], "latin.py can't be read: invalid or missing encoding"),
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
    ("starter", "size", "number"),
    [
        ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
        ("mpiexec", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("mpiexec", "PMI_SIZE", "PMI_RANK"),
    ],
)
def test_one_of_several_processes_is_refused_and_the_others_say_nothing(
    starter: str, size: str, number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(size, "3")
    monkeypatch.setenv(number, "0")
    with pytest.raises(UsageError, match=f"{starter} has started this command 3 times") as error:
        scripts.run(["-n", "2", "train.py"])
    assert f"Leave out {starter}: jaxcluster run --launcher auto" in error.value.hint
    monkeypatch.setenv(number, "2")
    with pytest.raises(SystemExit, match="2"):
        scripts.run(["-n", "2", "train.py"])
    assert scripts.run(["-n", "2", "--launcher", "local", "--dry-run", "train.py"]) == 0
    monkeypatch.setenv(size, "1")
    assert scripts.run(["-n", "2", "--dry-run", "train.py"]) == 0


def test_a_script_is_read_as_python_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "latin.py").write_bytes(b"# coding: latin-1\nname = '\xe9'\n")
    (tmp_path / "link.py").symlink_to("real/latin.py")
    script = scripts.read_script(["link.py", "--steps", "3"])
    assert script.argv == ["link.py", "--steps", "3"]
    assert script.path == str(tmp_path / "link.py")
    assert script.folder == str(tmp_path / "real")  # Python follows the link for sys.path
    assert script.source.endswith("name = 'é'\n")
    script = scripts.read_script(["-m", "packed", "a"])  # the ranks find its source
    assert (script.module, script.argv[1:], script.folder) == ("packed", ["a"], str(tmp_path))


# --------------------------------------------------------------------------- what comes of it


@pytest.mark.parametrize(
    ("codes", "received", "expected"),
    [
        ([0, 0], 0, (None, 0)),
        ([1, 3], 0, (1, 3)),  # the first one's may be a Divergence
        ([1, 1], 0, (0, 1)),
        ([5, -9, 1], 0, (1, 137)),
        ([5, None], 0, (1, 1)),  # its host is lost
        ([130, 130], signal.SIGINT, (None, 130)),
        ([130, 130], signal.SIGTERM, (None, 143)),
        ([130, 9], signal.SIGTERM, (1, 9)),
        ([0, 0], signal.SIGTERM, (None, 0)),  # its own handler has ended it well
    ],
)
def test_the_status_is_that_of_a_death_else_of_a_rank_that_failed(
    codes: list[int | None], received: int, expected: tuple[int | None, int]
) -> None:
    dead = {rank: wire.Death("", code) for rank, code in enumerate(codes)}
    assert scripts.exit_status(dead, received) == expected


def test_rank_0_is_shown_and_all_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank-7.txt").write_text("of an earlier run")
    (tmp_path / "rank-notes.txt").write_text("the user's")
    made = scripts.Outputs(tmp_path, False, 2)
    gloo = b"[Gloo] Rank 0 is connected to 1 peer ranks.\n"
    for rank, data in (
        (0, b"a\r"),
        (1, b"b\n"),
        (0, gloo),
        (1, gloo),
        (0, b"\xc3"),
        (0, b"\xa9 \xff"),
    ):
        made.take(rank, "stdout", data)
    made.take(0, "stderr", b"c\n")
    made.take(1, "stderr", b"x\njaxcluster: rank 1 waits\n")
    made.end()
    shown = capsys.readouterr()
    assert shown.out == "a\ré \\xff"
    head = f"jaxcluster: ranks 0, 1. All outputs: {tmp_path}\n"
    assert shown.err == f"{head}c\njaxcluster: rank 1 waits\n"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "rank-0.txt": b"a\r" + gloo + b"\xc3\xa9 \xffc\n",
        "rank-1.txt": b"b\n" + gloo + b"x\njaxcluster: rank 1 waits\n",
        "rank-notes.txt": b"the user's",
    }
    assert [*made.read.values()] == [len(gloo) + 6, 2, len(gloo) + 2, 27]
    assert made.last(1) == "\nb\nx\njaxcluster: rank 1 waits"


def test_a_full_disk_is_told_once_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = scripts.Outputs(tmp_path, False, 1)
    (tmp_path / "rank-0.txt").unlink()
    (tmp_path / "rank-0.txt").symlink_to("/dev/full")
    for _ in range(2):
        made.take(0, "stdout", b"more\n")
    shown = capsys.readouterr()
    assert shown.out == "more\nmore\n"
    assert shown.err.count(f"{tmp_path} can't be written to (No space left on device).") == 1


# --------------------------------------------------------------------------- a run


def test_a_coordinator_that_ended_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scripts, "FAILED_S", (0.0, 30.0))

    def signal_ranks(number: int, ranks: set[int]) -> None:
        world.dead.update({rank: wire.Death("exit code 130", 130) for rank in ranks})

    processes = SimpleNamespace(printed=lambda read: {}, signal=signal_ranks)
    told = "killed by SIGKILL"
    world: Any = SimpleNamespace(
        num_processes=2, dead={}, coordinator_died=told, processes=processes
    )
    assert scripts.wait(world, scripts.Outputs(tmp_path, False, 2), []) == 1
    assert f"jaxcluster: the coordinator ended: {told}." in capsys.readouterr().err


def test_what_does_not_compile_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("x = (1,\n")
    assert scripts.run(["-n", "2", "train.py"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f'  File "{tmp_path}/train.py", line 1\n    x = (1,\n')
    assert told.endswith("SyntaxError: '(' was never closed\n")


def test_a_start_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise LaunchError("no host")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scripts, "start_world", fail)
    (tmp_path / "train.py").touch()
    (tmp_path / "mine").mkdir()
    for words in (["-n", "2", "train.py"], ["-n", "2", "--logs", "mine", "train.py"]):
        with pytest.raises(LaunchError):
            scripts.run(words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "train.py"]


# --------------------------------------------------------------------------- its process

FORKS = """
import json, os, signal, sys, threading, time
from jaxcluster.agreement.messages import CellSpec
from jaxcluster.agreement.server import Server
from jaxcluster.job.process import Job
from jaxcluster.job.script import run_script
from jaxcluster.wire.ops.start import Script
folder, body, pids = sys.argv[1], sys.argv[2], []
for number, case in enumerate(json.loads(sys.argv[3])):
    pids.append(os.fork())
    if not pids[-1]:
        for end in 1, 2:
            os.dup2(os.open(f"{folder}/{number}.{end}", os.O_WRONLY | os.O_CREAT), end)
        exec(body)
        sys.exit()
print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""


def forked(folder: Path, body: str, cases: list[Any]) -> list[tuple[int, str, str]]:
    """The status, the output and the errors of a fork for each case, all at once."""
    words = [sys.executable, "-c", FORKS, str(folder), body, json.dumps(cases)]
    statuses = subprocess.check_output(words, text=True, timeout=120).split()
    read = [[(folder / f"{n}.{end}").read_text() for end in (1, 2)] for n in range(len(cases))]
    return [(int(status), out, err) for status, (out, err) in zip(statuses, read, strict=True)]


RUN = "run_script(Script(folder=folder, **case), Job(0, 1, 5.0, leaves_alone=True))"
ENDS = {
    "ok": ("import atexit, sys; atexit.register(print, sys.argv, __name__, __file__)", 0, ""),
    "status": ("import sys; sys.exit(3)", 3, ""),
    "words": ("import sys; sys.exit('no data')", 1, "no data\n"),
    "error": ("def f(): raise ValueError('bad')\n\nf()", 1, "ValueError: bad\n"),
    "stop": ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
    "child": (
        "import os, sys\npid = os.fork()\npid or sys.exit(7)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))", 7, "",
    ),
    "hook": ("import sys\nsys.excepthook = lambda *what: print(what[0], file=sys.stderr)\n1 / 0", 1,
        "<class 'ZeroDivisionError'>\n"),
}  # fmt: skip


def test_a_scripts_process_ends_as_pythons(tmp_path: Path) -> None:
    path = str(tmp_path / "train.py")
    cases = [
        {"argv": ["train.py", "-x"], "path": path, "source": source} for source, *_ in ENDS.values()
    ]
    ends = dict(zip(ENDS, forked(tmp_path, RUN, cases), strict=True))
    for name, (_, code, told) in ENDS.items():
        status, out, err = ends[name]
        shown = f"['train.py', '-x'] __main__ {path}\n" if name == "ok" else ""
        assert (status, out) == (code, shown), (name, err)
        assert err.endswith(told) if told else not err, name
    lines = [
        f'  File "{path}", line {line}, in {where}' for line, where in ((3, "<module>"), (1, "f"))
    ]
    assert [line for line in ends["error"][2].splitlines() if "File" in line] == lines


STOPPED = """
address = f"{folder}/{case}"
server, job = Server(2, address), Job(0, 2, 5.0, leaves_alone=True)
threading.Thread(target=server.serve, daemon=True).start()
other = Job(1, 2, 5.0, leaves_alone=True)
for one in (other, job):
    one.connect(address)
job.agreement.guard_signals()
other.agreement.tell("arrive", CellSpec(1, (0, 1)))
job.begin()
if case == "thread":  # in which a launch is refused
    job.agreement.is_refused = True
elif case == "gone":
    job._base.shutdown(2)
    job._all_over.wait()
elif case == "asyncio":
    import asyncio
    asyncio.run(asyncio.sleep(0))
elif case == "silent":
    job.agreement.tell = lambda *told: None
    threading.Timer(1.2, os.kill, (os.getpid(), signal.SIGINT)).start()
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
began = time.monotonic()
try:
    os.kill(os.getpid(), signal.SIGINT)
    print("goes on")
    time.sleep(60)
except KeyboardInterrupt:
    print(0.2 < time.monotonic() - began < 30, flush=True)
os._exit(0)
"""


def test_a_stop_is_the_referees_and_comes_by_itself_where_no_launch_does(tmp_path: Path) -> None:
    """A second Ctrl-C ends what is silent."""
    cases = ["stop", "thread", "asyncio", "silent", "gone"]
    ends = forked(tmp_path, STOPPED, cases)
    for case, (status, told, errors) in zip(cases, ends, strict=True):
        goes_on = "" if case == "gone" else "goes on\n"
        assert (status, told) == (0, f"True\n{goes_on}{case != 'gone'}\n"), (case, errors)
