"""What of the user's may still launch programs beside a rank's cells: told by real threads."""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import functools
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
from helpers import until

from jaxcluster.engine.background import Background


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    """As on a rank that is about to run its first cell, with a loop that others run."""
    monkeypatch.setattr("signal.getitimer", lambda which: (0.0, 0.0))  # the test's own limit
    loop = asyncio.new_event_loop()
    found = Background()
    found.attach(loop)
    yield found
    loop.close()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def wait(event: threading.Event) -> None:
    """As a thread does that may go on by itself."""
    while not event.wait(0.005):
        pass


def turn(background: Background) -> list[str]:
    """Two looks, with a turn of the event loop between them."""
    loop = background._loop
    assert loop is not None
    background.look()
    before = background.probes
    loop.run_until_complete(asyncio.sleep(0))
    assert background.probes == before + 1
    return background.look()


def test_what_was_there_before_the_first_cell_does_not_count(
    background: Background, release: threading.Event
) -> None:
    threading.Thread(target=wait, args=(release,)).start()
    _thread.start_new_thread(wait, (release,))
    until(lambda: len(background.look()) == 2, "both run")
    assert background._loop is not None
    background.attach(background._loop)
    assert background.look() == []


def test_a_thread_is_named_until_it_ends(background: Background, release: threading.Event) -> None:
    thread = threading.Thread(target=wait, args=(release,), name="loader")
    thread.start()
    assert background.look() == ["thread 'loader'"]
    release.set()
    thread.join()
    assert background.look() == []


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
    [told] = background.look()
    assert told.startswith("thread 'Dummy-")
    release.set()
    libc.pthread_join(pthread, None)
    assert background.look() == []


def test_threads_that_threading_does_not_know_count(
    background: Background, release: threading.Event
) -> None:
    for _ in range(2):
        _thread.start_new_thread(wait, (release,))
    until(lambda: background.look() == ["2 threads of _thread"], "both run")
    release.set()
    until(lambda: background.look() == [], "their end")


def test_workers_count_while_they_work(background: Background, release: threading.Event) -> None:
    executor, pool = ThreadPoolExecutor(2, thread_name_prefix="pool"), ThreadPool(1)
    executor.submit(int).result()
    pool.map(int, [1])
    until(lambda: background.look() == [], "the workers are idle")
    working = threading.Event()
    executor.submit(lambda: working.set() or wait(release))
    assert working.wait(10)
    until(lambda: background.look() == ["thread 'pool_0'"], "the worker works")
    release.set()
    until(lambda: background.look() == [], "the worker is idle")
    release.clear()
    working.clear()
    pool.apply_async(lambda: working.set() or wait(release))
    assert working.wait(10)
    until(lambda: len(background.look()) == 1, "the worker works")
    release.set()
    until(lambda: background.look() == [], "the worker is idle")
    executor.shutdown()
    pool.terminate()


def test_one_that_waits_for_another_thread_without_a_limit_begins_nothing(
    background: Background,
) -> None:
    jobs: queue.Queue[None] = queue.Queue()
    thread = threading.Thread(target=jobs.get)
    thread.start()
    until(lambda: background.look() == [], "it waits")
    jobs.put(None)
    thread.join()
    polling = threading.Thread(target=lambda: _poll(jobs), name="polling")
    polling.start()
    assert background.look() == ["thread 'polling'"]
    jobs.put(None)
    polling.join()


def _poll(jobs: queue.Queue[None]) -> None:
    while True:
        try:
            return jobs.get(timeout=0.005)
        except queue.Empty:
            pass


def test_a_progress_bar_and_threads_of_ours_begin_nothing(
    background: Background, release: threading.Event
) -> None:
    monitor = type("TMonitor", (threading.Thread,), {"__module__": "tqdm._monitor"})
    monitor(target=wait, args=(release,)).start()
    threading.Thread(target=wait, args=(release,), name="jaxcluster-held-back").start()
    assert background.look() == []
    release.set()


def test_tasks_and_timers_of_the_event_loop_count(background: Background) -> None:
    loop = background._loop
    assert loop is not None

    async def later() -> None:
        await asyncio.sleep(1000)

    task = loop.create_task(later(), name="later")
    loop.run_until_complete(asyncio.sleep(0))
    assert turn(background) == ["task 'later'"]
    task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    assert turn(background) == []
    timer = loop.call_later(1000, functools.partial(print, "x", file=None))
    assert turn(background) == ["a timer of the event loop"]
    timer.cancel()
    assert turn(background) == []


def test_a_timer_of_signals_counts(background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.getitimer", lambda which: (1.5, 0.0))
    assert background.look() == ["a timer of signal"]


def test_a_package_whose_name_begins_like_one_of_those_counts(
    background: Background, release: threading.Event
) -> None:
    monitor = type("Monitor", (threading.Thread,), {"__module__": "tqdm_of_mine"})
    monitor(target=wait, args=(release,), name="mine").start()
    assert background.look() == ["thread 'mine'"]
    release.set()


def test_what_a_harmless_call_is_wrapped_around_counts(
    background: Background, release: threading.Event
) -> None:
    """As the thread of a library's would be that calls what the user gave it."""
    names = {"__name__": "tornado.web"}
    exec("def call(function, *arguments):\n    function(*arguments)", names)
    call: Any = names["call"]
    for name, target in {
        "mine": functools.partial(call, wait, release),
        "its own": functools.partial(call),
    }.items():
        arguments = () if name == "mine" else (wait, release)
        threading.Thread(target=target, args=arguments, name=name).start()
    assert background.look() == ["thread 'mine'"]
    release.set()


def test_a_library_s_task_that_awaits_the_user_s_counts(background: Background) -> None:
    loop = background._loop
    assert loop is not None
    names = {"__name__": "tornado.web"}
    exec("async def serve(handler):\n    await handler", names)

    async def handler() -> None:
        await asyncio.sleep(1000)

    serve: Any = names["serve"]
    task = loop.create_task(serve(handler()), name="serve")
    loop.run_until_complete(asyncio.sleep(0))
    assert turn(background) == ["task 'serve'"]
    task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    quiet = loop.create_task(serve(asyncio.sleep(1000)), name="quiet")
    loop.run_until_complete(asyncio.sleep(0))
    assert turn(background) == []
    loop.call_later(2000, print, "x").cancel()  # it stays behind the task's own timer
    assert turn(background) == []
    quiet.cancel()
    loop.run_until_complete(asyncio.sleep(0))


def test_a_loop_that_does_not_turn_has_not_been_asked(background: Background) -> None:
    background.look()
    background.look()
    assert background.probes == 0
