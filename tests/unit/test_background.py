"""What of the user's may still launch programs beside a rank's cells: told by real threads."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import contextvars
import ctypes
import functools
import multiprocessing
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
from helpers import until

from jaxcluster.engine.background import Background, _calls_own_alone, _on_loop, is_own
from jaxcluster.supervision import processes


def look(background: Background) -> list[str]:
    """As a poll does."""
    background.ask()
    return background.look()


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    """As on a rank that is about to run its first cell, with a loop that others run."""
    monkeypatch.setattr("signal.getitimer", lambda which: (0.0, 0.0))  # the test's own limit
    until(_no_thread_ends, "the threads of the tests before have ended")
    loop = asyncio.new_event_loop()
    found = Background()
    found.attach(loop)
    yield found
    loop.close()


def _no_thread_ends() -> bool:
    """One that ended in a test's midst would be counted as the place of one that it starts."""
    count = _thread._count()
    time.sleep(0.03)
    return _thread._count() == count


@pytest.fixture
def no_other_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that runs tests may have some that other tests have started."""
    before = set(processes.children())

    def has_children() -> bool:
        return any(map(processes.start_time, set(processes.children()) - before))

    monkeypatch.setattr("jaxcluster.supervision.ends.has_children", has_children)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event, count = threading.Event(), _thread._count()
    yield event
    event.set()
    until(lambda: _thread._count() <= count, "the ends of those that have waited")


def wait(event: threading.Event) -> None:
    """As a thread does that may go on by itself."""
    while not event.wait(0.005):
        pass


def own() -> contextvars.Context:
    """A context that is the rank's."""
    context = contextvars.copy_context()
    context.run(is_own.set, True)
    return context


def step(loop: asyncio.AbstractEventLoop) -> None:
    """As the rank's own code has its loop turn."""
    own().run(lambda: loop.run_until_complete(asyncio.sleep(0)))


def turn(background: Background) -> list[str]:
    """Two looks, with a turn of the event loop between them."""
    loop = background._loop
    assert loop is not None
    look(background)
    before = background.probes
    step(loop)
    assert background.probes == before + 1
    return look(background)


def test_what_was_there_before_the_first_cell_does_not_count(
    background: Background, release: threading.Event
) -> None:
    threading.Thread(target=wait, args=(release,)).start()
    _thread.start_new_thread(wait, (release,))
    until(lambda: len(look(background)) == 2, "both run")
    assert background._loop is not None
    background.attach(background._loop)
    assert look(background) == []


def test_a_thread_is_named_until_it_ends(background: Background, release: threading.Event) -> None:
    thread = threading.Thread(target=wait, args=(release,), name="loader")
    thread.start()
    assert look(background) == ["thread 'loader'"]
    release.set()
    thread.join()
    assert look(background) == []


def test_a_librarys_thread_counts_while_it_runs_python(
    background: Background, release: threading.Event
) -> None:
    """``threading`` lists it from its first ``current_thread`` on, for ever until Python 3.12."""
    entered = threading.Event()

    def call(_: object) -> None:
        threading.current_thread()
        entered.set()
        wait(release)

    libc, pthread = ctypes.CDLL(None), ctypes.c_ulong()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(call)
    assert libc.pthread_create(ctypes.byref(pthread), None, function, None) == 0
    assert entered.wait(30)
    [told] = look(background)
    assert told.startswith("thread 'Dummy-")
    release.set()
    libc.pthread_join(pthread, None)
    assert look(background) == []


def test_threads_that_threading_does_not_know_count(
    background: Background, release: threading.Event
) -> None:
    for _ in range(2):
        _thread.start_new_thread(wait, (release,))
    until(lambda: look(background) == ["2 threads of _thread"], "both run")
    release.set()
    until(lambda: look(background) == [], "their end")


def test_workers_count_while_they_work(background: Background, release: threading.Event) -> None:
    executor, pool = ThreadPoolExecutor(2, thread_name_prefix="pool"), ThreadPool(1)
    executor.submit(int).result()
    pool.map(int, [1])
    until(lambda: look(background) == [], "the workers are idle")
    working = threading.Event()
    executor.submit(lambda: working.set() or wait(release))
    assert working.wait(10)
    until(lambda: look(background) == ["thread 'pool_0'"], "the worker works")
    release.set()
    until(lambda: look(background) == [], "the worker is idle")
    release.clear()
    working.clear()
    pool.apply_async(lambda: working.set() or wait(release))
    assert working.wait(10)
    until(lambda: "(worker)" in str(look(background)), "the worker works")
    release.set()
    until(lambda: look(background) == [], "the worker is idle")
    executor.shutdown()
    pool.terminate()


def test_one_that_waits_for_another_thread_without_a_limit_begins_nothing(
    background: Background,
) -> None:
    jobs: queue.Queue[None] = queue.Queue()
    thread = threading.Thread(target=jobs.get)
    thread.start()
    until(lambda: look(background) == [], "it waits")
    jobs.put(None)
    thread.join()
    polling = threading.Thread(target=lambda: _poll(jobs), name="polling")
    polling.start()
    assert look(background) == ["thread 'polling'"]
    jobs.put(None)
    polling.join()


def _poll(jobs: queue.Queue[None]) -> None:
    while True:
        try:
            return jobs.get(timeout=0.005)
        except queue.Empty:
            pass


def made_by(package: str, source: str, name: str, file: str = "") -> Any:
    """A function or class that an installed package has defined."""
    names: dict[str, Any] = {"__name__": f"{package}.web", "threading": threading}
    exec(compile(source, file or f"/env/site-packages/{package}/web.py", "exec"), names)
    return names[name]


CALL = "def call(function, *arguments):\n    function(*arguments)"
WAIT = "def wait(event):\n    while not event.wait(0.005): pass"


def test_a_progress_bar_and_threads_of_ours_begin_nothing(
    background: Background, release: threading.Event
) -> None:
    source = f"class Monitor(threading.Thread):\n  def run(self): wait(self.event)\n{WAIT}"
    monitor = made_by("tqdm", source, "Monitor")()
    monitor.event = release
    monitor.start()
    threading.Thread(target=wait, args=(release,), name="jaxcluster-held-back").start()
    assert look(background) == []
    release.set()


def test_a_thread_in_the_place_of_one_of_ours_counts(
    background: Background, release: threading.Event
) -> None:
    """There are as many as there were, and the look before has found nothing."""
    ended = threading.Event()
    ours = threading.Thread(target=ended.wait, name="jaxcluster-ours", daemon=True)
    ours.start()
    assert [background._threads(), background._threads()] == [[], []]
    count = _thread._count()
    _thread.start_new_thread(wait, (release,))
    until(lambda: background._threads() == ["a thread of _thread"], "it runs")
    ended.set()
    ours.join()
    until(lambda: _thread._count() == count, "the end of ours")
    assert background._threads() == ["a thread of _thread"]
    release.set()
    until(lambda: background._threads() == [], "its end")
    theirs = threading.Event()
    thread = threading.Thread(target=wait, args=(theirs,), name="loader", daemon=True)
    thread.start()
    assert background._threads() == ["thread 'loader'"]
    theirs.set()
    thread.join()
    assert background._threads() == []


def test_where_threads_of_ours_alone_live_none_is_looked_at_again(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert background._threads() == []
    monkeypatch.setattr("jaxcluster.engine.background._raw_threads", None)
    assert background._threads() == []


def test_one_that_has_begun_nothing_so_far_is_looked_at_again(
    background: Background, release: threading.Event
) -> None:
    todo: queue.Queue[Callable[[], None]] = queue.Queue()

    def work() -> None:
        todo.get()()

    thread = threading.Thread(target=work, name="loader", daemon=True)
    thread.start()
    until(lambda: background._threads() == [], "it waits")
    todo.put(functools.partial(wait, release))
    until(lambda: background._threads() == ["thread 'loader'"], "it goes on")


@pytest.mark.usefixtures("no_other_children")
def test_what_is_on_the_loop_is_judged_alike_by_both_looks(background: Background) -> None:
    """The quick one asks what of it may not be the rank's own; the other one tells what it is."""
    loop: Any = background._loop
    read, write = os.pipe()
    own().run(loop.call_later, 1000, print)
    own().run(loop.add_reader, read, print)
    own().run(loop.call_soon, list)
    loop.call_later(1000, print).cancel()
    assert _calls_own_alone(loop) and not _on_loop(loop)
    for schedule, told in [
        (lambda: loop.call_later(1000, print), "timer"),
        (lambda: loop.call_soon(list), "callback"),
        (lambda: loop.add_writer(write, print), "reader"),
    ]:
        handle = schedule()
        assert not _calls_own_alone(loop)
        assert _on_loop(loop) == [f"{told} of the event loop"]
        loop.remove_writer(write) if handle is None else handle.cancel()
        assert _calls_own_alone(loop) and not _on_loop(loop)
    loop._signal_handlers[signal.SIGUSR1] = None
    assert not _calls_own_alone(loop) and not _on_loop(loop)
    with child():
        assert _on_loop(loop) == ["handler of SIGUSR1"]
    loop._signal_handlers.clear()
    os.close(read)
    os.close(write)


def test_tasks_and_timers_of_the_event_loop_count(background: Background) -> None:
    loop = background._loop
    assert loop is not None

    async def later() -> None:
        await asyncio.sleep(1000)

    task = loop.create_task(later(), name="later")
    step(loop)
    assert turn(background) == ["task 'later'", "timer of the event loop"]
    task.cancel()
    step(loop)
    assert turn(background) == []
    timer = loop.call_later(1000, functools.partial(print, "x", file=None))
    assert turn(background) == ["timer of the event loop"]
    timer.cancel()
    assert turn(background) == []


def test_a_timer_of_signals_counts(background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.getitimer", lambda which: (1.5, 0.0))
    assert look(background) == ["timer of signal"]


def test_a_package_whose_name_begins_like_one_of_those_counts(
    background: Background, release: threading.Event
) -> None:
    monitor = type("Monitor", (threading.Thread,), {"__module__": "tqdm_of_mine"})
    monitor(target=wait, args=(release,), name="mine").start()
    assert look(background) == ["thread 'mine'"]
    release.set()


def test_what_a_harmless_thread_was_given_counts(
    background: Background, release: threading.Event
) -> None:
    """As the thread of a library's would be that calls what the user gave it."""
    jobs: queue.Queue[None] = queue.Queue()
    call, its_own = made_by("tqdm", CALL, "call"), made_by("tqdm", WAIT, "wait")
    for name, target, arguments in [
        ("partial", functools.partial(call, wait), (release,)),
        ("argument", call, (wait, release)),
        ("no code of it runs yet", call, (jobs.get, True, 1000)),
        ("made of text", made_by("tqdm", WAIT, "wait", "<string>"), (release,)),
        ("its own", call, (its_own, release)),
    ]:
        threading.Thread(target=target, args=arguments, name=name).start()
    until(lambda: len(look(background)) == 4, "they are seen")
    assert "thread 'its own'" not in look(background)
    jobs.put(None)
    release.set()


def test_one_that_waits_for_a_thread_that_does_not_count_counts(background: Background) -> None:
    jobs: queue.Queue[None] = queue.Queue()
    threads = [
        threading.Thread(target=made_by(name, CALL, "call"), args=(jobs.get,), name=name)
        for name in ("wandb", "mylib")
    ]
    for thread in threads:
        thread.start()
    until(lambda: look(background) == ["thread 'wandb'"], "the other one waits")
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        thread.join()


def test_what_is_scheduled_outside_of_cells_is_jupyters(background: Background) -> None:
    loop = background._loop
    assert loop is not None
    read, write = os.pipe()

    def schedule() -> None:
        loop.call_later(1000, print)
        loop.add_reader(read, print)
        loop.create_task(asyncio.sleep(1000))

    own().run(schedule)
    step(loop)
    assert turn(background) == []
    schedule()  # as in a cell
    step(loop)
    task, *others = turn(background)
    assert task.startswith("task ")
    assert others == ["timer of the event loop", "reader of the event loop"]
    os.close(read)
    os.close(write)
    stop(loop)


def stop(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    step(loop)


def test_what_runs_at_the_end_of_a_task_counts(background: Background) -> None:
    loop = background._loop
    assert loop is not None
    task = own().run(lambda: loop.create_task(asyncio.sleep(1000), name="sleep"))
    step(loop)
    assert turn(background) == []
    task.add_done_callback(print)
    assert turn(background) == ["task 'sleep'"]
    stop(loop)


def test_what_the_loop_is_to_call_next_counts(background: Background) -> None:
    loop = background._loop
    assert loop is not None
    look(background)
    loop.call_soon(list)
    step(loop)
    assert background._answer[-1:] == ["callback of the event loop"]


def test_at_a_cells_end_the_loop_is_looked_at_at_once(background: Background) -> None:
    loop = background._loop
    assert loop is not None
    assert not background.is_any_left()
    timer = loop.call_later(1000, print)
    assert background.is_any_left()
    assert own().run(background.look) == ["timer of the event loop"]
    timer.cancel()
    assert not background.is_any_left()
    assert look(background) == []
    loop._scheduled = None  # type: ignore[attr-defined]
    assert background.is_any_left()
    loop._scheduled = []  # type: ignore[attr-defined]


def test_what_a_thread_hands_to_the_loop_is_seen_once_at_least(
    background: Background, release: threading.Event
) -> None:
    """The main thread sees both at once: the thread is over when it is looked at again."""
    thread = threading.Thread(target=wait, args=(release,), name="short")
    look(background)
    thread.start()
    assert background._loop is not None
    step(background._loop)
    release.set()
    thread.join()
    assert look(background) == ["thread 'short'"]
    step(background._loop)
    assert look(background) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of jax, which other tests import
def test_a_pool_counts_while_one_of_its_jobs_is_not_done(
    background: Background, release: threading.Event
) -> None:
    """Also where another process does it: what is called at its end runs on the pool's thread."""
    context = multiprocessing.get_context("fork")  # others leave a process behind
    called: list[Callable[..., None]] = []

    def hold(_: object) -> None:
        called.append(hold)
        release.wait(60)

    with ProcessPoolExecutor(1, mp_context=context) as executor, context.Pool(1) as pool:
        executor.submit(int).result()
        pool.apply(int)
        until(lambda: look(background) == [], "both are idle", 60)
        executor.submit(time.sleep, 0.3).add_done_callback(hold)
        assert look(background) != []
        until(lambda: called, "its end", 60)
        assert len(look(background)) == 1
        release.set()
        until(lambda: look(background) == [], "it is idle", 60)
        pool.apply_async(time.sleep, (0.3,))
        assert "_handle_results" in str(look(background))
        until(lambda: look(background) == [], "it is idle", 60)


def test_a_loop_of_another_thread_counts_while_it_has_something_to_do(
    background: Background,
) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="loop", daemon=True)
    thread.start()
    until(lambda: look(background) == [], "it is idle")
    task = asyncio.run_coroutine_threadsafe(asyncio.sleep(1000), loop)
    assert look(background) == ["thread 'loop'"]
    task.cancel()
    until(lambda: look(background) == [], "it is idle")
    loop.call_soon_threadsafe(lambda: loop.call_later(1000, print))
    until(lambda: len(loop._scheduled) == 1, "the timer runs")  # type: ignore[attr-defined]
    assert look(background) == ["thread 'loop'"]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@contextlib.contextmanager
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("no_other_children")
def test_a_handler_of_a_signal_counts_if_it_is_the_users_and_a_child_may_send_it(
    background: Background,
) -> None:
    loop = background._loop
    assert loop is not None
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        assert look(background) == []
        with child() as process:
            assert look(background) == ["handler of SIGUSR1"]
            signal.signal(signal.SIGUSR1, made_by("flax", "def f(number, frame): pass", "f"))
            assert look(background) == []
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            assert turn(background) == []
            loop.add_signal_handler(signal.SIGUSR1, print)
            assert turn(background) == ["handler of SIGUSR1"]
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert turn(background) == []  # it has ended, and nobody has asked how
        loop.remove_signal_handler(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_loop_that_does_not_turn_has_not_been_asked(background: Background) -> None:
    look(background)
    look(background)
    assert background.probes == 0
