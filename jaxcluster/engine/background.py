"""What of the user's may still launch programs on a rank while it runs no cell.

A rank that has ended a cell launches nothing more only if nothing of the user's lives on beside it:
a thread, a task on the event loop, a timer. Threads that are there before the first cell, the
kernel's own, and those that can't begin anything by themselves (a thread pool's worker that waits
for work, a progress bar's monitor) do not count: else one progress bar would keep every hang of a
session from being named.

Where a thread stands is read only where one lives of which nothing else is known.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures.thread
import functools
import inspect
import multiprocessing.pool
import signal
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any

from jaxcluster.engine.stacks import stack_of

# Whatever these packages run by themselves launches no program of the user's.
HARMLESS = (
    "IPython",
    "_pydevd_bundle",
    "asyncio",
    "debugpy",
    "ipykernel",
    "ipyparallel",
    "ipywidgets",
    "jaxcluster",
    "jupyter_client",
    "logging",
    "multiprocessing.queues",
    "prometheus_client",
    "pydevd",
    "tensorboard",
    "tensorboardX",
    "tornado",
    "tqdm",
    "traitlets",
    "wandb",
    "zmq",
)
HARMLESS_POOL = ("_handle_workers", "_handle_tasks", "_handle_results")


def _code(owner: Any, name: str) -> CodeType | None:
    """The code of a function of Python's own; None where it has moved."""
    return getattr(getattr(owner, name, None), "__code__", None)


def _lines(owner: Any, name: str, text: str) -> frozenset[int]:
    """The lines of a function that begin with ``text``; none where they are unknown."""
    try:
        source, first = inspect.getsourcelines(getattr(owner, name))
    except (AttributeError, OSError, TypeError):
        return frozenset()
    return frozenset(n for n, line in enumerate(source, first) if line.strip().startswith(text))


# The code in which a thread waits, without a limit, for another one of this process to give it
# something -> the lines at which it does; None: wherever its innermost frame is this function's.
IDLE: dict[CodeType | None, frozenset[int] | None] = {
    _code(concurrent.futures.thread, "_worker"): None,
    _code(multiprocessing.pool, "worker"): _lines(multiprocessing.pool, "worker", "task = get()"),
    threading.Condition.wait.__code__: _lines(threading.Condition, "wait", "waiter.acquire()"),
}


class Background:
    """Tells what of the user's lives on this rank beside its cells.

    Attributes:
      probes: how often the main thread has answered since the rank serves.
    """

    def __init__(self) -> None:
        self.probes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_asked = False
        self._on_loop: list[str] = []
        self._own: frozenset[threading.Thread] = frozenset()
        self._own_raw = 0

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the main thread, before the first cell: what lives now is not the user's."""
        self._loop = loop
        self._own = frozenset(threading.enumerate())
        self._own_raw = max(0, _raw_threads())

    def look(self) -> list[str]:
        """Threads, tasks and timers by name; those of the loop as its last answer had them.

        Any thread; some 10 us, and 10 us for each thread of the user's. It asks the main
        thread for its tasks and timers, which it tells when it next has time; ``probes`` counts
        that.
        """
        if self._loop is not None and not self._is_asked:
            self._is_asked = True
            self._loop.call_soon_threadsafe(self._look_at_loop)
        return [*self._threads(), *self._on_loop]

    def _threads(self) -> list[str]:
        unknown = [t for t in threading.enumerate() if t not in self._own and not _is_harmless(t)]
        raw = _raw_threads() - self._own_raw
        found = [f"thread {t.name!r}" for t in unknown if not (is_idle(t.ident) or _is_out(t))]
        if raw > 0:
            found.append("a thread of _thread" if raw == 1 else f"{raw} threads of _thread")
        if signal.getitimer(signal.ITIMER_REAL)[0] > 0:
            found.append("a timer of signal")
        return found

    def _look_at_loop(self) -> None:
        """On the main thread, which is in no cell then, or in one that awaits."""
        try:
            assert self._loop is not None
            tasks = [t for t in asyncio.all_tasks(self._loop) if not _is_harmless_task(t)]
            found = [f"task {t.get_name()!r}" for t in tasks]
            handles = list(getattr(self._loop, "_scheduled", ()))
            if any(not h.cancelled() and not _is_harmless_call(h) for h in handles):
                found.append("a timer of the event loop")
            self._on_loop = found
        finally:
            self.probes += 1
            self._is_asked = False


def _raw_threads() -> int:
    """How many threads run that ``threading`` knows nothing of (``_thread.start_new_thread``)."""
    known = sum(
        thread.is_alive()
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)
    )
    return _thread._count() - known


def _is_harmless(thread: threading.Thread) -> bool:
    if thread is threading.main_thread() or thread.name.startswith("jaxcluster-"):
        return True
    if _is_of(type(thread).__module__):
        return True
    target = getattr(thread, "_target", None)
    if getattr(target, "__module__", "") == multiprocessing.pool.__name__:
        return getattr(target, "__name__", "") in HARMLESS_POOL
    return target is not None and all(map(_is_of, _modules(target)))


def _is_of(module: str | None) -> bool:
    return module is not None and any(module == m or module.startswith(m + ".") for m in HARMLESS)


def _modules(call: Any) -> Iterator[str | None]:
    """The modules of a callable and of what it is wrapped around."""
    while isinstance(call, functools.partial):
        yield from (m for a in call.args if callable(a) for m in _modules(a))
        call = call.func
    owner = getattr(call, "__self__", None)
    if owner is not None and not inspect.ismodule(owner) and not inspect.isclass(owner):
        yield type(owner).__module__
    yield getattr(call, "__module__", None)


def _is_harmless_call(handle: Any) -> bool:
    call, args = getattr(handle, "_callback", None), getattr(handle, "_args", None) or ()
    return all(_is_of(m) for c in (call, *filter(callable, args)) for m in _modules(c))


def _is_harmless_task(task: asyncio.Task[Any]) -> bool:
    """Whether all coroutines that it consists of belong to packages that launch nothing."""
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None and not _is_of(frame.f_globals.get("__name__")):
            return False
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return True


def _is_out(thread: threading.Thread) -> bool:
    """Whether a library's own thread, which has called Python once, runs none of it now.

    XLA's threads call the callbacks of programs. ``threading`` knows such a thread for ever from
    its first ``current_thread()`` on, which logging asks for too, and can't tell when it ends.
    """
    if not isinstance(thread, threading._DummyThread) or thread.ident is None:
        return False
    return not stack_of(thread.ident)


def is_idle(ident: int | None) -> bool:
    """Whether a thread waits for another thread of this process, without a limit."""
    place = next(iter(stack_of(ident)), None) if ident is not None else None
    if place is None:
        return False
    code, line = place
    lines = IDLE.get(code, frozenset())
    return lines is None or line in lines
