"""A script as all that a rank's process is there for: as ``python FILE`` or ``python -m`` runs it.

``jaxcluster run`` sends it as a cell, so its launches are agreed on, its interrupts come where a
cell's do, and its lines are told as a cell's. Here is the rest of what a script may expect of its
process: ``sys.argv``, ``__main__``, no IPython in sight, and at its end what Python does at the end
of a process. The cluster ends with the script, so nothing is put back but the rank's event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import concurrent.futures
import contextlib
import gc
import io
import linecache
import os
import runpy
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jaxcluster import wire
from jaxcluster.engine import interrupts

AFTER_ERROR_S = 3.0  # that threads get after the script has failed; after its end they get all
JOIN_S = 0.1  # between looks, since a lock that is waited for hears no interrupt


def run(script: wire.Script, source: str, namespace: dict[str, Any], cells: dict[str, int]) -> None:
    """Run a script, to what Python would do at the end of its process.

    Args:
      namespace: that of ``__main__``; empty of the script's names afterwards.
      cells: the file names of cells and their numbers; the script is cell 1.

    Raises:
      SystemExit: it ends with this status, 1 to 255. What it had to say is on ``sys.stderr``.
      BaseException: what the script has raised.
    """
    pid, loop = os.getpid(), asyncio.get_running_loop()
    _become_a_script(script, namespace)
    try:
        _execute(_compile(script, source, namespace, cells), namespace, End(namespace))
    except SystemExit as exit:
        if os.getpid() != pid:  # a process that the script has forked
            end_child(int(exit.code or 0))
        raise
    finally:
        asyncio._set_running_loop(loop)
        asyncio.set_event_loop(loop)


def end_child(status: int) -> None:
    """End a process that the user's code has forked, with all that it has printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a stream may be the user's
            stream.flush()
    os._exit(status)


def _become_a_script(script: wire.Script, namespace: dict[str, Any]) -> None:
    """From here on the process is a script's own, as far as that can see."""
    namespace.clear()
    namespace.update(
        __name__="__main__", __doc__=None, __package__=None, __loader__=None, __spec__=None,
        __builtins__=builtins, __annotations__={},
    )  # fmt: skip
    sys.argv = list(script.argv)
    if not os.environ.get("PYTHONSAFEPATH"):  # its own folder in place of the notebook's
        others = [p for p in sys.path if p not in ("", os.getcwd(), script.folder)]
        sys.path[:] = [script.folder, *others]
    # tqdm, rich and pandas look for a notebook by it, and would output widgets and HTML.
    setattr(InteractiveShell, "initialized", classmethod(lambda cls: False))  # noqa: B010
    if os.environ.get("MPLBACKEND", "").startswith("module://"):
        del os.environ["MPLBACKEND"]  # matplotlib's for notebooks
    asyncio._set_running_loop(None)  # the rank's own, in which no asyncio.run could be


def _compile(
    script: wire.Script, source: str, namespace: dict[str, Any], cells: dict[str, int]
) -> types.CodeType:
    """The script's code; its lines are a cell's from here on.

    Raises:
      SystemExit: there is no such module; it was said.
      SyntaxError: it is not valid Python.
    """
    path = script.path
    if script.module:
        try:
            _, spec, code = runpy._get_module_details(script.module)  # type: ignore[attr-defined]
        except ImportError as error:
            print(f"{sys.executable}: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        sys.argv[0] = path = spec.origin
        namespace.update(
            __package__=spec.parent, __spec__=spec, __cached__=spec.cached, __loader__=spec.loader
        )
    else:
        # As it was sent: this host may not have it, and whoever waits in the queue may edit it.
        lines = source.splitlines(keepends=True)
        linecache.cache[path] = (len(source), None, lines, path)
        code = compile(source, path, "exec", dont_inherit=True)
    namespace["__file__"] = path
    cells[path] = 1
    made: types.CodeType = code
    return made


def _execute(code: types.CodeType, namespace: dict[str, Any], end: End) -> None:
    """Run the code, and then what Python does at the end. Here an interrupt may be raised."""
    try:
        exec(code, namespace)
    except SystemExit as exit:
        status = _status(exit)
        end.come(AFTER_ERROR_S if status else None)
        if status:
            raise SystemExit(status) from None
    except BaseException as error:
        if sys.excepthook is not end.excepthook:  # a logger of the script's, say
            with contextlib.suppress(Exception):  # as Python does, which goes on with its own
                sys.excepthook(type(error), error, error.__traceback__)
        end.come(AFTER_ERROR_S)
        raise
    else:
        end.come(None)


interrupts.RUNS.add(_execute.__code__)


def _status(exit: SystemExit) -> int:
    """The process's exit status, 0 to 255. A message is written to ``sys.stderr``."""
    if exit.code is None:
        return 0
    if isinstance(exit.code, int):
        return exit.code & 0xFF
    print(exit.code, file=sys.stderr)
    return 1


class End:
    """What Python does at the end of a process, for what a script leaves behind.

    Attributes:
      excepthook: the one that was there before the script.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.excepthook = sys.excepthook
        self._namespace = namespace
        self._threads = set(threading.enumerate())
        self._finalizers = set(_finalizers())
        self._executors = set(map(id, _all_of(concurrent.futures.Executor)))
        self._functions: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        # The first finalizer of a process registers what ends all of them: not as ours.
        weakref.finalize(self, bool).detach()
        self._register, self._unregister = atexit.register, atexit.unregister
        atexit.register, atexit.unregister = self._add, self._remove  # type: ignore[assignment]

    def _add(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        self._functions.append((func, args, kwargs))
        return func

    def _remove(self, func: Callable[..., Any]) -> None:
        self._functions[:] = [one for one in self._functions if one[0] != func]
        self._unregister(func)

    def come(self, patience_s: float | None) -> None:
        """Do it.

        Args:
          patience_s: how long threads and processes are waited for; None: as long as they take.
        """
        try:
            self._wait(patience_s)
            while self._functions:
                func, args, kwargs = self._functions.pop()
                with _told(f"atexit callback {func!r}"):
                    func(*args, **kwargs)
            for one in sorted(set(_finalizers()) - self._finalizers, key=_age, reverse=True):
                with _told(f"finalizer {one!r}"):
                    one()  # of a TemporaryDirectory, say
        finally:
            atexit.register, atexit.unregister = self._register, self._unregister
            dunders = ("__name__", "__builtins__")
            for name in [n for n in self._namespace if n not in dunders]:
                del self._namespace[name]
            gc.collect()  # files are closed
            for file in [*_all_of(io.TextIOWrapper), *_all_of(io.BufferedWriter)]:
                with contextlib.suppress(Exception):  # it is closed, or the script has broken it
                    file.flush()

    def _wait(self, patience_s: float | None) -> None:
        """For threads that are no daemons, executors' work, and processes of multiprocessing."""
        until = None if patience_s is None else time.monotonic() + patience_s
        for executor in _all_of(concurrent.futures.Executor):
            if id(executor) not in self._executors:
                executor.shutdown(wait=False)  # it does what it was given, and then ends
        multiprocessing = sys.modules.get("multiprocessing")
        children = multiprocessing.active_children() if multiprocessing is not None else []
        children = [one for one in children if one._parent_pid == os.getpid()]
        for child in children:
            if child.daemon:
                child.terminate()
        while left := [*self._live_threads(), *(one for one in children if one.is_alive())]:
            for one in left:
                one.join(JOIN_S)
            if until is not None and time.monotonic() > until:
                return

    def _live_threads(self) -> list[threading.Thread]:
        """The script's own, of which one may have started another meanwhile."""
        return [t for t in threading.enumerate() if t not in self._threads and not t.daemon]


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """What is raised inside is written to ``sys.stderr``, as Python does it at its end."""
    try:
        yield
    except Exception:
        print(f"Exception ignored in {what}:", file=sys.stderr)
        traceback.print_exc()


def _all_of(kind: type[Any]) -> list[Any]:
    """The objects of a class that the garbage collector knows."""
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def _finalizers() -> list[weakref.finalize[..., Any]]:
    """Those that are to be called at the end. ``weakref``'s own name for them: Python 3.11-3.13."""
    registry = getattr(weakref.finalize, "_registry", {})
    return [one for one in list(registry) if one.atexit]


def _age(one: weakref.finalize[..., Any]) -> int:
    return getattr(getattr(one, "_registry", {}).get(one), "index", 0)
