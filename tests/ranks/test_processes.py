"""Ranks are what a script's processes are: their random numbers, arguments, children and ends."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator

import pytest
from helpers import Home, Notebook, until

import jaxcluster
from jaxcluster.errors import CellFailed, RankDied

pytestmark = pytest.mark.any_jax

Start = Callable[..., jaxcluster.Cluster]


def printed(cluster: jaxcluster.Cluster, source: str) -> list[str]:
    """What each rank prints in a cell."""
    record = cluster.run(source, show=False)
    return [record.stdout(rank) for rank in range(cluster.num_processes)]


@pytest.fixture(scope="module")
def own(home: Home) -> Iterator[jaxcluster.Cluster]:
    """Two ranks without names of the tests'. At their end no process is left that cells began."""
    with jaxcluster.start(2, name="own") as running:
        yield running


# --------------------------------------------------------------------------- random numbers

DRAW = """
import multiprocessing, numpy as np, random, secrets, tempfile, uuid
print(np.random.rand())
print(np.random.permutation(10**6)[0])
print(np.random.get_bit_generator().seed_seq.spawn(1)[0].generate_state(2))
print(np.random.get_bit_generator().seed_seq.entropy)
print(np.random.default_rng().random())
print(np.random.RandomState().rand())
print(random.random())
print(random.Random().random())
print(uuid.uuid1())
print(uuid.uuid4())
print(uuid._random_getnode())
print(next(tempfile._get_candidate_names()))
print(secrets.token_hex(8))
print(bytes(multiprocessing.current_process().authkey).hex())
"""


def test_ranks_draw_other_random_numbers_than_each_other_and_than_before(start: Start) -> None:
    """JAX's own example of loading data draws by np.random what each process loads."""
    running = start(3)
    drawn = printed(running, DRAW)
    running.restart(clean=True)  # from the same fork server
    drawn += printed(running, DRAW)
    for draws in zip(*(text.splitlines() for text in drawn), strict=True):
        assert len(set(draws)) == len(drawn), draws


# --------------------------------------------------------------------------- their arguments


def test_arguments_are_those_of_an_interactive_session(own: jaxcluster.Cluster) -> None:
    main = "import __main__\nprint(__name__, __main__.__dict__ is globals(), __main__.__spec__)"
    assert printed(own, main) == ["__main__ True None\n"] * 2
    source = "import sys\nprint(sys.argv, len(sys.orig_argv), sys.orig_argv[0] == sys.executable)"
    assert printed(own, source) == ["[''] 1 True\n"] * 2
    parse = "import argparse\nprint(argparse.ArgumentParser().parse_args())"
    assert printed(own, parse) == ["Namespace()\n"] * 2
    absl = (
        "from absl import app, flags\nflags.DEFINE_integer('steps', 3, '')\n"
        "try: app.run(lambda argv: print(argv, flags.FLAGS.steps))\nexcept SystemExit: pass"
    )
    assert printed(own, absl) == ["[''] 3\n"] * 2


def test_settings_that_are_read_before_the_fork_reach_the_ranks(start: Start) -> None:
    env = {"TZ": "Asia/Tokyo", "TMPDIR": "/var/tmp", "NPY_PROMOTION_STATE": "weak"}
    running = start(1, env=env)
    assert printed(
        running, "import tempfile, time\nprint(time.tzname[0], tempfile.gettempdir())"
    ) == ["JST /var/tmp\n"]


# --------------------------------------------------------------------------- their children


def test_a_cell_may_start_processes(own: jaxcluster.Cluster) -> None:
    for method in ("fork", "spawn", "forkserver"):
        source = (
            "import multiprocessing, operator\n"
            f"with multiprocessing.get_context({method!r}).Pool(2) as pool:\n"
            "    print(pool.map(operator.neg, range(3)))"
        )
        assert printed(own, source) == ["[0, -1, -2]\n"] * 2


SHARES = """
import multiprocessing, os, subprocess, sys
from multiprocessing import shared_memory
spawning = multiprocessing.get_context("spawn")
lock, shared = spawning.Lock(), shared_memory.SharedMemory(create=True, size=1000)
names = [lock._semlock.name.strip("/"), shared.name.strip("/")]
child = subprocess.Popen([sys.executable, "-c", '''
import multiprocessing, time
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name.strip("/"), flush=True)
time.sleep(1000)
'''], stdout=subprocess.PIPE)
names.append(child.stdout.readline().decode().strip())
print(names, names[1] in os.listdir("/dev/shm"), "sem." + names[2] in os.listdir("/dev/shm"))
"""


def test_multiprocessings_folder_is_the_ranks_own_and_goes_with_the_cluster(start: Start) -> None:
    running = start(2)
    source = (
        "import multiprocessing.util, os\n"
        "with multiprocessing.get_context('forkserver').Manager() as manager: manager.list([1])\n"
        "folder = multiprocessing.util.get_temp_dir()\nprint(folder, os.listdir(folder))"
    )
    shown = printed(running, source)
    folders = {text.split()[0] for text in shown}
    assert len(folders) == 2
    for rank, text in enumerate(shown):
        assert f"/rank-{rank} ['listener-" in text
    running.stop()
    # Over hosts it is looked for what is left there.
    assert not any(map(os.path.exists, folders))


@pytest.mark.one_machine("looks at /dev/shm of this machine")
@pytest.mark.parametrize("end", ["stopped", "restarted", "killed"])
def test_what_processes_share_goes_with_the_rank(start: Start, end: str) -> None:
    """Nobody but multiprocessing's own tracker knows the semaphores and shared memory of a rank."""
    running = start(2)
    left: set[str] = set()
    for text in printed(running, SHARES):
        assert text.endswith("True True\n"), text
        memory = ast.literal_eval(text.partition("]")[0] + "]")
        left |= {memory[1], "sem." + memory[0], "sem." + memory[2]}
    if end == "killed":
        with pytest.raises(RankDied):
            running.run("os.kill(os.getpid(), 9)", show=False)
    elif end == "restarted":
        running.restart(clean=True)
    else:
        running.stop()
    until(lambda: not left.intersection(os.listdir("/dev/shm")), "what ranks shared is gone")


def test_what_a_forked_child_prints_is_shown(pair: jaxcluster.Cluster) -> None:
    source = (
        "import multiprocessing\n"
        "def child():\n    print('from the', 'child')\n"
        "    print('x' * (3 << 20), end='')\n"  # more than waits for a socket
        "process = multiprocessing.get_context('fork').Process(target=child)\n"
        "process.start(); process.join(30)\nprint(process.exitcode)"
    )
    shown = printed(pair, source)[0]
    assert "from the child\n" in shown
    assert "0" in shown.replace("x", "")  # the child's may come in between
    assert len(shown) > 3 << 20
    assert "from the child" in pair.logs(1, lines=2)[:100] + pair.logs(1)


FORKS = """
total = jax.jit(lambda x: x.sum())
float(total(x)), float(total(x))
def child(launch):
    end, begin = os.pipe()
    if not (pid := os.fork()):
        try:
            launch()
        except BaseException as error:
            os.write(begin, str(error).encode())
        os._exit(0)
    os.close(begin)
    os.waitpid(pid, 0)
    print(os.read(end, 1000).decode())
if jax.process_index() == 1:
    child(lambda: total(x))
print(float(total(x)))
"""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_launches_nothing_that_spans_processes(pair: jaxcluster.Cluster) -> None:
    """It would send on the rank's connections: another rank died in a later cell."""
    shown = printed(pair, FORKS)
    assert shown[1].count("This process was forked from rank 1, so it can't launch jit") == 1
    for _ in range(3):
        assert printed(pair, "print(float(total(x)))") == ["496.0\n"] * 2


# --------------------------------------------------------------------------- their ends

SAID = (
    "exit and quit do nothing on a rank: the others need it. %jaxcluster stop ends the cluster.\n"
)


@pytest.mark.parametrize(
    "source",
    ["exit(keep_kernel=True)", "quit", "get_ipython().ask_exit()",
     "await __import__('asyncio').sleep(0)\ndef leave(): exit()\nleave()"],
)  # fmt: skip
def test_exit_and_quit_end_nothing_and_say_what_does(pair: jaxcluster.Cluster, source: str) -> None:
    pids = pair.record.pids
    assert printed(pair, source) == [SAID] * 2
    # IPython's own would end the process a tenth of a second after the reply.
    pair.run("import time\ntime.sleep(0.3)")
    assert (pair.dead, pair.record.pids) == ({}, pids)
    assert printed(pair, "print(float(jnp.sum(x)))") == ["496.0\n"] * 2


def test_a_reset_namespace_has_them_too(own: jaxcluster.Cluster) -> None:
    own.run("%reset -f")
    assert printed(own, "quit()") == [SAID] * 2
    assert "on ranks 0, 1: input(): " in str(raised(own, "input('name? ')"))


def raised(cluster: jaxcluster.Cluster, source: str) -> CellFailed:
    with pytest.raises(CellFailed) as caught:
        cluster.run(source, show=False)
    return caught.value


def test_input_says_why_nobody_can_be_asked(pair: jaxcluster.Cluster) -> None:
    for source in (
        "input()",
        "import getpass\ngetpass.getpass()",
        "import builtins\nbuiltins.input()",
    ):
        assert "on ranks 0, 1: input(): " in str(raised(pair, source))


# --------------------------------------------------------------------------- JAX's own lifecycle


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("jax.distributed.initialize('127.0.0.1:1234', 2, 2)", "Leave both out"),
        (
            "jax.config.update('jax_num_cpu_devices', 5)",
            "%jaxcluster start --devices-per-process",
        ),
    ],
)
def test_what_start_has_done_is_not_done_or_undone_in_a_cell(
    pair: jaxcluster.Cluster, source: str, words: str
) -> None:
    error = raised(pair, source)
    assert "RuntimeError on ranks 0, 1" in str(error)
    assert words in str(error)
    # A set of processes that has not computed together before needs the coordinator.
    fresh = (
        "order = jax.devices()[::-1]\n"
        "backwards = NamedSharding(jax.make_mesh((2,), ('b',), devices=order), P('b'))\n"
        "jax.clear_caches()\n"
        "y = jax.make_array_from_callback((4,), backwards, lambda i: np.arange(4.0)[i])\n"
        "print(jax.process_count(), float(jnp.sum(y)))"
    )
    assert printed(pair, fresh) == ["2 6.0\n"] * 2


# --------------------------------------------------------------------------- %reload_ext


def test_reloading_the_extension_keeps_all_there_is(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2")
    notebook.ok("%%spmd\nimport os\nprint('the last cell', os.getpid())")
    notebook.ok("%jaxcluster auto on")
    pid = notebook.ok("print(os.getpid())").stdout
    for _ in range(2):
        notebook.ok("%reload_ext jaxcluster")
        assert notebook.ok("print(os.getpid())").stdout == pid
    notebook.ok("%load_ext jaxcluster")
    assert pid.strip() in notebook.ok("%jaxcluster outputs").stdout
    events = len(notebook.comm_messages)
    notebook.ok("print('seen by the panel')", cell_id="of a page")
    notebook.until(lambda: len(notebook.comm_messages) > events, "the panel tells of the cell")
    notebook.ok("%jaxcluster auto off")
    notebook.ok("%unload_ext jaxcluster")
    notebook.until(lambda: len(notebook.processes()) == 1, "only the kernel is left", 10)


# --------------------------------------------------------------------------- between cells

ALARM = """
import os, signal
def late(*_):
    raise {}
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.01)
"""
# As stopit and func_timeout do, whose timeout comes when the cell is over.
THROWN = """
import ctypes, threading, time
main = ctypes.c_ulong(threading.main_thread().ident)
def throw():
    time.sleep(0.2)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(TimeoutError))
threading.Thread(target=throw).start()
"""


@pytest.mark.parametrize(
    "source", [ALARM.format("TimeoutError('late')"), ALARM.format("KeyboardInterrupt"), THROWN]
)
def test_what_a_cell_has_raised_after_its_end_ends_no_rank(
    own: jaxcluster.Cluster, source: str
) -> None:
    own.restart(clean=True)
    own.run(source)
    name = "KeyboardInterrupt" if "KeyboardInterrupt" in source else "TimeoutError"
    for rank in range(2):
        until(lambda rank=rank: name in own.logs(rank), "the error between cells")
    assert not own.dead
    own.restart(clean=True)
    assert printed(own, "print(1)") == ["1\n"] * 2
