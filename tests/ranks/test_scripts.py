"""``jaxcluster run``: real scripts, on real ranks, beside what plain Python makes of them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import Home, Notebook, python, until

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.one_machine("a shell's commands start clusters of this machine"),
]

RUN = ("-m", "jaxcluster", "run", "-n", "2")

# What a script finds, and what it leaves to the end of its process.
ORDINARY = '''
"""Its docstring."""
import asyncio, atexit, concurrent.futures, ctypes, json, multiprocessing, os, sys, threading, time
import __main__

def double(n): return 2 * n

def child():
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.exit(7)

def stuck():
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    mutex = ctypes.create_string_buffer(64)
    lock(mutex), lock(mutex)

def terminated(target, *args, after_s=0):
    forked = multiprocessing.get_context("fork").Process(target=target, args=args)
    forked.start()
    time.sleep(after_s)
    forked.terminate()
    forked.join(10)
    return forked.exitcode

async def answer():
    await asyncio.sleep(0)
    return 42

class Mine: ...

if __name__ == "__main__":
    import warnings
    warnings.simplefilter("ignore")  # JAX's of a fork
    import helper
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
        doubled = pool.submit(double, 21).result()
    found = {
        "argv": sys.argv, "file": __file__, "path": sys.path[0], "cwd": os.getcwd(),
        "doc": __doc__, "package": __package__, "main": __main__.__dict__ is globals(),
        "class": Mine.__module__, "helper": helper.VALUE, "async": asyncio.run(answer()),
        "child": child(), "doubled": doubled,
        "terminated": [terminated(time.sleep, 60) for _ in range(10)],
        "stuck": terminated(stuck, after_s=0.2),
        "tty": sys.stdout.isatty(),
        "names": sorted(n for n in globals() if n in ("In", "Out", "get_ipython", "exit", "x")),
        "ipython": "get_ipython" in dir(__builtins__),
    }
    print(json.dumps(found))
    sys.stdout.buffer.write(b"bytes\\n")
    sys.stdout.flush()
    os.system("echo shell")
    name = os.environ.get("RANK_FILE", "plain")
    try:
        import jax
        if jax.distributed.is_initialized():
            jax.distributed.initialize()
            jax.distributed.initialize(num_processes=2, process_id=jax.process_index())
            import jax.numpy as jnp
            from jax.sharding import NamedSharding, PartitionSpec as P
            mesh = jax.make_mesh((jax.device_count(),), "i")
            x = jax.make_array_from_callback(
                (4,), NamedSharding(mesh, P("i")), lambda at: jnp.arange(4.0)[at])
            name = f"rank-{jax.process_index()}-{float(jnp.sum(x))}"
            jax.distributed.shutdown()
    finally:
        unclosed = open(name, "w")
        unclosed.write("kept")
    def last():
        time.sleep(0.3)
        print("thread")
    threading.Thread(target=last).start()
    atexit.register(print, "atexit")
    print("end")
'''

# The rank that fails, and what the others do meanwhile, by the first argument.
BAD = """
import os, signal, sys, time, jax, numpy as np, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
rank, what = jax.process_index(), sys.argv[1]
mesh = jax.make_mesh((2,), "i")
x = jax.make_array_from_callback((2,), NamedSharding(mesh, P("i")), lambda at: np.ones(2)[at])
def for_ever():
    while True:
        try:
            time.sleep(0.05)
        except KeyboardInterrupt:
            print("not I", flush=True)
print("begin", float(jnp.sum(x)), flush=True)
if what == "exit":
    if rank == 1:
        sys.exit(3)
    for_ever()
elif what == "kill":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    jnp.max(x).block_until_ready()
elif what == "save":
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        print("saved")
        sys.exit(9)
elif what == "train":
    step, update = 0, jax.jit(lambda x: x * 1.0 + jnp.sum(x), donate_argnums=0)
    try:
        while True:
            x = update(x)
            step += 1
            if step == 20 and rank == 0:
                print("training", flush=True)
    finally:
        print("steps", step, flush=True)
elif what == "term":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
elif what == "stubborn":
    for_ever()
elif what == "flood":
    while True:
        print("x" * 1000)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "ordinary.py").write_text(ORDINARY)
    (tmp_path / "code" / "helper.py").write_text("VALUE = 'beside the script'\n")
    (tmp_path / "bad.py").write_text(BAD)
    return tmp_path


@pytest.fixture
def run(private_home: Home, folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script to its end."""
    return lambda *words: python(
        *RUN, "--logs", "out", *words, env=private_home.environ(), cwd=folder
    )


def test_a_script_finds_what_it_finds_with_python(
    run: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> None:
    words = ("code/ordinary.py", "--steps", "3")
    plain = python(*words, cwd=folder)
    assert plain.returncode == 0, plain.stderr
    ours = run(*words)
    assert ours.returncode == 0, ours.stderr
    found, *rest = ours.stdout.splitlines()
    expected, *expected_rest = plain.stdout.splitlines()
    assert json.loads(found) == json.loads(expected)
    assert sorted(rest) == sorted(expected_rest)  # what a shell writes comes when it is read
    assert rest[-2:] == ["thread", "atexit"]
    for rank in (0, 1):
        assert (folder / f"rank-{rank}-6.0").read_text() == "kept"
        assert "atexit\n" in (folder / "out" / f"rank-{rank}.txt").read_text()


def test_a_module_of_which_all_ranks_are_shown(
    run: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> None:
    package = folder / "packed"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import sys, jax\nfrom . import __name__ as name\n"
        "print(name, __spec__.name, sys.argv, jax.process_index())\n"
    )
    done = run("--all", "-m", "packed", "--all")
    assert done.returncode == 0, done.stderr
    argv = [str(package / "__main__.py"), "--all"]
    assert sorted(done.stdout.splitlines()) == [
        f"[rank {rank}] packed packed.__main__ {argv} {rank}" for rank in (0, 1)
    ]


@pytest.mark.parametrize(
    ("what", "status", "told"),
    [
        ("exit", 3, "rank 1 ended with exit code 3."),  # while rank 0 never ends
        ("kill", 137, "rank 1 died: killed by SIGKILL."),
    ],
)
def test_the_first_failure_ends_the_run_and_is_its_status(
    run: Callable[..., subprocess.CompletedProcess[str]],
    folder: Path,
    what: str,
    status: int,
    told: str,
) -> None:
    done = run("bad.py", what)
    assert done.returncode == status, done.stderr
    assert told in done.stderr
    assert f"All outputs: {folder / 'out'}" in done.stderr
    assert "cell" not in done.stderr.replace("cells", "")
    assert "%" not in done.stderr  # magics are not typed in a shell
    for rank in (0, 1):
        assert "begin 2.0\n" in (folder / "out" / f"rank-{rank}.txt").read_text()


def test_without_agreement_a_rank_that_fails_ends_the_run_as_well(
    private_home: Home, folder: Path
) -> None:
    env = private_home.environ(JAXCLUSTER_AGREE="0")
    done = python(*RUN, "--logs", "out", "bad.py", "exit", env=env, cwd=folder)
    assert (done.returncode, done.stdout) == (3, "begin 2.0\nnot I\n")


class Foreground:
    """A run that goes on."""

    def __init__(self, home: Home, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *RUN, *words],
            env=home.environ(TMPDIR=str(folder)),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
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

    def status(self) -> int:
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        return self.process.wait(60)


@pytest.fixture
def foreground(private_home: Home, folder: Path) -> Iterator[Callable[..., Foreground]]:
    made: list[Foreground] = []

    def start(*words: str) -> Foreground:
        made.append(Foreground(private_home, folder, *words))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        assert each.process.stdout is not None
        each.process.stdout.close()
        each.process.wait(30)


@pytest.mark.parametrize(
    ("what", "begun", "number", "status"),
    [("save", "begin", signal.SIGINT, 9), ("term", "ready", signal.SIGTERM, 0)],
)
def test_a_signal_is_the_scripts_to_handle(
    foreground: Callable[..., Foreground], what: str, begun: str, number: int, status: int
) -> None:
    running = foreground("bad.py", what)
    running.wait_for(begun)
    running.process.send_signal(number)
    assert running.status() == status
    assert what != "save" or "saved\n" in running.lines


def test_ctrl_c_stops_all_ranks_before_the_same_launch(
    foreground: Callable[..., Foreground], folder: Path
) -> None:
    running = foreground("--logs", "out", "bad.py", "train")
    running.wait_for("training")
    running.process.send_signal(signal.SIGINT)
    assert running.status() == 130
    texts = [(folder / "out" / f"rank-{rank}.txt").read_text() for rank in (0, 1)]
    counts = {found[0] for text in texts for found in [re.findall(r"steps (\d+)", text)]}
    assert len(counts) == 1, texts
    assert all("Stopped" in text for text in texts)
    assert not any("jaxcluster/agreement" in text for text in texts)  # a frame of ours


def test_a_second_signal_ends_what_heeds_none(foreground: Callable[..., Foreground]) -> None:
    running = foreground("bad.py", "stubborn")
    running.wait_for("begin")
    running.process.send_signal(signal.SIGINT)
    running.wait_for("not I")
    running.process.send_signal(signal.SIGTERM)
    assert running.status() == 130


def test_nothing_outlives_a_run_that_was_killed(
    foreground: Callable[..., Foreground], private_home: Home
) -> None:
    running = foreground("bad.py", "stubborn")
    running.wait_for("begin")
    assert len(private_home.processes()) > 2
    running.process.kill()
    running.process.wait(30)
    until(lambda: not private_home.processes(), "end of all processes")


def test_a_reader_that_goes_ends_the_run(
    foreground: Callable[..., Foreground], folder: Path
) -> None:
    running = foreground("bad.py", "flood")
    running.wait_for("xxx")
    assert running.process.stdout is not None
    running.process.stdout.close()
    assert running.process.wait(100) == 128 + signal.SIGPIPE


QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
WAITING = """%%spmd
print('waited', rate, float(jnp.sum(x)))
"""


def test_an_exported_notebook_gives_its_numbers(
    open_notebook: Callable[..., Notebook], home: Home, tmp_path: Path
) -> None:
    """The quickstart as it stands, a push, a cell that fails, and one that uses what was pushed."""
    notebook = open_notebook()
    cells = json.loads(QUICKSTART.read_text())["cells"]
    shown = []
    for source in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
        if not source.startswith("%jaxcluster"):
            cell = notebook.ok(source)
            shown += cell.text.splitlines() if source.startswith("%%spmd") else []
    notebook.ok("rate = 0.5\n%push rate")
    assert "ZeroDivisionError" in notebook.run("%%spmd\n1 / 0").error
    shown += notebook.ok(WAITING).text.splitlines()
    told = notebook.ok("%jaxcluster export train.py").text
    assert "jaxcluster run -n 4 --devices-per-process 2 train.py" in told
    assert "was not changed" in notebook.run("%jaxcluster export train.py").error
    notebook.ok("%jaxcluster stop")
    text = (tmp_path / "train.py").read_text()
    assert "1 / 0" not in text
    (tmp_path / "train.py").write_text(text.replace("# rate = ...", "rate = 0.5"))

    words = ("run", "-n", "4", "--devices-per-process", "2", "--logs", "out", "train.py")
    done = python("-m", "jaxcluster", *words, env=home.environ(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout) == numbers("\n".join(shown))


def numbers(text: str) -> tuple[list[str], list[str]]:
    """What was printed of the sums, and the values of ``x``, in a text."""
    printed = re.findall(r"^(?:0|waited 0.5) -?\d+\.\d+$", text, re.M)
    shown = re.search(r"\[\[.*?\]\]", text, re.S)
    assert len(printed) == 2 and shown is not None, text
    return printed, re.findall(r"\d+", shown[0])
