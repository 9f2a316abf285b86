"""What of the user's may still launch programs on a rank while it runs no cell.

A rank that has ended a cell launches nothing more only if nothing lives on beside it that can begin
something: a thread, a task or callback of the event loop, a timer. It is judged by whose code it
is, and what can't be known counts:

- *The event loop*: whatever was scheduled in a context that is not the rank's own. asyncio hands a
  context on from a cell to all that comes of it, through tornado and executors too, so a library's
  timer that calls the user's function is the user's, and Jupyter's own is not.
- *Threads*: all that are not known to wait for another thread of this process without a limit (it
  counts if it can go on), and that run, or were given, code of others than a few packages which
  launch nothing. A pool's own threads, and a loop's, count while they have something to do: what
  that calls at its end is the user's.
- *Signals*: an armed timer, and a handler of the user's while a child process lives that may send
  its signal. A signal from elsewhere is taken to come to all ranks at once.

Not those that are there before the first cell, and not garbage: it is collected only while code
runs. A progress bar's monitor or an idle pool does not count: else one would keep every hang of a
session from being named. Where a thread stands is read only where one lives of which nothing else
is known.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import asyncio
import concurrent.futures.thread
import contextvars
import functools
import inspect
import multiprocessing.pool
import operator
import selectors
import signal
import threading
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from jaxcluster.engine.library_code import installed_name, is_library_file
from jaxcluster.engine.stacks import Place, stack_of
from jaxcluster.supervision import ends

# Packages whose own code launches no program, and that call nothing which they are given.
HARMLESS = (
    "IPython",
    "_pydevd_bundle",
    "debugpy",
    "ipykernel",
    "ipywidgets",
    "jaxcluster",
    "jupyter_client",
    "prometheus_client",
    "pydevd",
    "tensorboard",
    "tensorboardX",
    "tqdm",
    "traitlets",
    "wandb",
    "zmq",
)
HARMLESS_OF_POOL = ("_handle_workers", "_handle_tasks")
# The timers' are known by the timers; these two ask the process to end.
TIMERS = {
    signal.ITIMER_REAL: signal.SIGALRM,
    signal.ITIMER_VIRTUAL: signal.SIGVTALRM,
    signal.ITIMER_PROF: signal.SIGPROF,
}
SIGNALS = sorted(
    map(int, signal.valid_signals() - {signal.SIGINT, signal.SIGTERM, *TIMERS.values()})
)

# Whether what runs in a context is the rank's own: the main thread's and the control channel's.
# Cells, and what ipyparallel's clients run, have it False; a thread of anybody's has no value.
is_own: contextvars.ContextVar[bool] = contextvars.ContextVar("jaxcluster_is_own", default=False)


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
SELECT = _code(selectors.DefaultSelector, "select")


class Background:
    """Tells what of the user's lives on this rank beside its cells.

    Attributes:
      probes: how often the main thread has answered since the rank serves.
    """

    def __init__(self) -> None:
        self.probes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_asked = False
        self._answer: list[str] = []
        self._own: frozenset[threading.Thread] = frozenset()
        self._own_raw = 0
        # The threads that were listed when all of them were the rank's own, and how many ran.
        self._calm: tuple[list[threading.Thread], int] = ([], 0)
        self._own_handlers: dict[int, Any] = dict.fromkeys(SIGNALS)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the main thread, before the first cell: what lives now is not the user's."""
        self._loop = loop
        listed = threading.enumerate()
        self._own = frozenset(listed)
        self._own_raw = max(0, _raw_threads(listed, _thread._count()))
        self._own_handlers = {number: _signal.getsignal(number) for number in SIGNALS}

    def is_any_left(self) -> bool:
        """On the main thread, at a cell's end: whether anything may launch more."""
        try:
            self._answer = self._seen_here()
        except Exception:  # it can't be told
            return True
        return bool(self._answer or self._signals())

    def ask(self) -> None:
        """Have the main thread look too, when it next has time; ``probes`` counts that.

        Only there nothing can go from a thread to the loop unseen.
        """
        if self._loop is not None and not self._is_asked:
            self._is_asked = True
            self._loop.call_soon_threadsafe(self._look_at_all)

    def look(self) -> list[str]:
        """Threads, tasks, timers and handlers by name: seen now, or by the main thread before.

        Any thread; some 10 us, and 10 us for each thread of the user's.
        """
        return list(dict.fromkeys([*self._threads(), *self._signals(), *self._answer]))

    def _threads(self) -> list[str]:
        listed, count = threading.enumerate(), _thread._count()
        calm, most = self._calm
        # The same threads are listed, and each of them runs as long as it is: of those that are
        # not, there are no more than there were.
        if count <= most and len(listed) == len(calm) and all(map(operator.is_, listed, calm)):
            return []
        unknown = [t for t in listed if t not in self._own]
        raw = _raw_threads(listed, count) - self._own_raw
        found = [f"thread {t.name!r}" for t in unknown if _may_begin_something(t)]
        if raw > 0:
            found.append("a thread of _thread" if raw == 1 else f"{raw} threads of _thread")
        elif all(map(_is_ours, unknown)):
            self._calm = listed, count
        return found

    def _signals(self) -> list[str]:
        found = []
        if any(signal.getitimer(which)[0] > 0 for which in TIMERS):
            found.append("timer of signal")
        own = self._own_handlers.values()
        handlers = list(map(_signal.getsignal, SIGNALS))  # without enums: some 0.1 us each
        if all(map(operator.is_, handlers, own)):
            return found
        changed = [
            number
            for number, handler, before in zip(SIGNALS, handlers, own, strict=True)
            if handler is not before and _is_users(handler)
        ]
        return found + _handlers(changed)

    def _look_at_all(self) -> None:
        """On the main thread, which is in no cell then, or in one that awaits."""
        try:
            self._answer = self._seen_here()
            self.probes += 1  # not where it could not be told: then it may launch
        finally:
            self._is_asked = False

    def _seen_here(self) -> list[str]:
        threads = self._threads()  # first: what they hand to the loop meanwhile is seen there
        return [*threads, *_on_loop(self._loop)]


def _on_loop(loop: Any) -> list[str]:
    """What of the user's is on the main thread's loop, on that thread."""
    found = [f"task {task.get_name()!r}" for task in asyncio.all_tasks(loop) if _is_theirs(task)]
    if _calls_own_alone(loop):
        return found
    for kind, handles in _handles(loop).items():
        if not all(_belongs(getattr(handle, "_context", None)) for handle in handles):
            found.append(f"{kind} of the event loop")
    handlers = getattr(loop, "_signal_handlers", {})
    return found + _handlers(n for n in handlers if n in SIGNALS)


def _handlers(numbers: Iterable[int]) -> list[str]:
    """Handlers of these signals by name; none where no process of the user's may send them."""
    found = [f"handler of {signal.Signals(n).name}" for n in numbers]
    return found if found and ends.has_children() else []


def _calls_own_alone(loop: Any) -> bool:
    """Whether all that a loop is to call is seen to be the rank's own.

    The same look as the one below, for the end of each cell: in a quarter of the time, since there
    it is not asked what is the user's. False: that has to be asked.
    """
    try:
        handles = [*loop._ready, *loop._scheduled]
        for key in list(loop._selector._fd_to_key.values()):
            if isinstance(key.data, tuple):
                handles += key.data
        wakes = loop._read_from_self
        for handle in handles:
            if (
                handle is not None
                and not _belongs(handle._context)
                and not handle.cancelled()
                and handle._callback != wakes
            ):
                return False
        return not loop._signal_handlers
    except AttributeError:  # another loop than asyncio's own
        return False


def _handles(loop: Any) -> dict[str, list[Any]]:
    """What a loop is to call: next, at a time, and when a file can be read or written."""
    selector = getattr(loop, "_selector", None)
    files = [key.data for key in list(selector.get_map().values())] if selector is not None else []
    found = {
        "callback": list(getattr(loop, "_ready", ())),
        "timer": list(getattr(loop, "_scheduled", ())),
        "reader": [h for data in files if isinstance(data, tuple) for h in data if h is not None],
    }
    wakes = getattr(loop, "_read_from_self", None)  # what a thread does that hands something to it
    return {
        kind: [h for h in handles if not h.cancelled() and getattr(h, "_callback", None) != wakes]
        for kind, handles in found.items()
    }


def _belongs(context: contextvars.Context | None) -> bool:
    return context is not None and context.get(is_own, False)


def _is_theirs(task: Any) -> bool:
    """Whether a task is the user's, or something of the user's runs at its end."""
    get_context = getattr(task, "get_context", None)  # from Python 3.12 on
    contexts = [get_context()] if get_context is not None else []
    for future in (task, getattr(task, "_fut_waiter", None)):
        contexts += [context for _, context in getattr(future, "_callbacks", None) or ()]
    return not all(map(_belongs, contexts))


def _raw_threads(listed: Iterable[threading.Thread], count: int) -> int:
    """How many threads run that ``threading`` knows nothing of (``_thread.start_new_thread``).

    Args:
      listed: those that it knows.
      count: how many run, read after that.
    """
    known = sum(
        thread.is_alive()
        for thread in listed
        if thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)
    )
    return count - known


def _is_ours(thread: threading.Thread) -> bool:
    return thread is threading.main_thread() or thread.name.startswith("jaxcluster-")


def _may_begin_something(thread: threading.Thread) -> bool:
    """Whether a thread may launch a program before another one has given it something to do."""
    if _is_ours(thread):
        return False
    stack = stack_of(thread.ident) if thread.ident is not None else []
    if isinstance(thread, threading._DummyThread):
        # A library's own, which has called Python once, as XLA's do. ``threading`` can't tell when
        # it ends, and lists it from its first ``current_thread()`` on, for which logging asks too.
        return bool(stack)
    if is_idle(stack):
        return False
    if any(_is_users_file(code.co_filename) for code, _ in stack):
        return True
    return not (_is_harmless(thread) or _has_nothing_to_do(thread, stack))


def is_idle(stack: list[Place]) -> bool:
    """Whether a thread waits for another thread of this process, without a limit.

    Not where it does so in a package whose threads are taken to be harmless: one of them wakes it.
    """
    code, line = next(iter(stack), (None, None))
    lines = IDLE.get(code, frozenset())
    waits = lines is None or line in lines
    return waits and not any(_is_harmless_file(place[0].co_filename) for place in stack)


def _has_nothing_to_do(thread: threading.Thread, stack: list[Place]) -> bool:
    """Whether it is a pool's own thread, or a loop's, and nothing was given to that.

    What is given to it may call the user's code at its end, though another process does it.
    """
    work = getattr(thread, "pending_work_items", None)  # ProcessPoolExecutor's manager, and loky's
    if isinstance(work, dict):
        return not work
    target = getattr(thread, "_target", None)
    if getattr(target, "__module__", "") == multiprocessing.pool.__name__:
        # Each job of the pool is in the cache of the thread that takes the results.
        caches = [a for a in getattr(thread, "_args", ()) if isinstance(a, dict)]
        name = getattr(target, "__name__", "")
        return not any(caches) if name == "_handle_results" else name in HARMLESS_OF_POOL
    loop = getattr(target, "__self__", None)
    loop = getattr(loop, "asyncio_loop", loop)  # tornado's
    if not isinstance(loop, asyncio.BaseEventLoop) or not stack or stack[0][0] is not SELECT:
        return False
    try:
        return not any(_handles(loop).values()) and not asyncio.all_tasks(loop)
    except RuntimeError:  # it has changed meanwhile
        return False


def _is_harmless(thread: threading.Thread) -> bool:
    """Whether it runs a package's own code that launches nothing, and was given no other."""
    target = getattr(thread, "_target", None)
    given = (*getattr(thread, "_args", ()), *getattr(thread, "_kwargs", {}).values())
    calls = [call for call in (target, *filter(callable, given)) if call is not None]
    is_packages = target is not None or _is_of(type(thread).__module__)
    return is_packages and all(_is_of(module) for call in calls for module in _modules(call))


def _is_of(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in HARMLESS


def _modules(call: Any) -> Iterator[str | None]:
    """The modules of a callable and of what it is wrapped around."""
    while isinstance(call, functools.partial):
        yield from (m for a in call.args if callable(a) for m in _modules(a))
        call = call.func
    owner = getattr(call, "__self__", None)
    if owner is not None and not inspect.ismodule(owner) and not inspect.isclass(owner):
        yield type(owner).__module__
    yield getattr(call, "__module__", None)


def _is_users(handler: Any) -> bool:
    """Whether a signal's handler is a Python function, and not an installed package's."""
    if not callable(handler):
        return False
    function = inspect.unwrap(getattr(handler, "__func__", handler))
    code = getattr(function, "__code__", None)
    return code is None or _is_users_file(code.co_filename)


@functools.lru_cache(4096)
def _is_users_file(file: str) -> bool:
    """Whether code may be the user's: a cell's, of a module not installed, or made of text."""
    return not is_library_file(file) or (file.startswith("<") and not file.startswith("<frozen "))


@functools.lru_cache(4096)
def _is_harmless_file(file: str) -> bool:
    return _is_of(installed_name(file))
