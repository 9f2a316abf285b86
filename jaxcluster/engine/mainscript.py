"""A script as all that a rank's process is there for: as ``python FILE`` or ``python -m`` runs it.

``jaxcluster run`` sends it as a cell, so its launches are counted and compared, its interrupts come
where a cell's do, and its lines are told as a cell's. Here is the rest of what a script may expect
of its process: ``sys.argv``, ``__main__``, no IPython in sight, and at its end what Python does at
the end of a process, which this one does not come to.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import concurrent.futures
import contextlib
import gc
import importlib.util
import io
import linecache
import os
import signal
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from IPython.core.interactiveshell import InteractiveShell

from jaxcluster import wire
from jaxcluster.engine import interrupts

AFTER_ERROR_S = 3.0  # that threads get after the script has failed; after its end they get all
JOIN_S = 0.1  # between looks, since a lock that is waited for hears no interrupt
NO_INPUT = (
    "standard input is not passed to ranks. Name a file in the arguments; input() asks at the "
    "terminal if jaxcluster run has one"
)


def _refuse(*_: object) -> NoReturn:
    raise io.UnsupportedOperation(NO_INPUT)


class _NoFile:
    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0  # the null device, for what the script starts


class NoBytes(_NoFile, io.BufferedIOBase):
    """The bytes below ``NoInput``."""

    read = read1 = readinto = readinto1 = readline = _refuse


class NoInput(_NoFile, io.TextIOBase):
    """A ``sys.stdin`` that says that there is none, where an end of file would be wrong."""

    encoding = "utf-8"
    read = readline = _refuse

    def __init__(self) -> None:
        self.buffer = NoBytes()


def run(script: wire.Script, source: str, namespace: dict[str, Any], cells: dict[str, int]) -> None:
    """Run a script, to what Python would do at the end of its process.

    Args:
      namespace: that of ``__main__``; empty of the script's names afterwards.
      cells: the file names of cells and their numbers; the script is cell 1.

    Raises:
      SystemExit: it ends with this status, 1 to 255. What it had to say is on ``sys.stderr``.
      BaseException: what the script has raised.
    """
    pid = os.getpid()
    try:
        with _as_python_has_it(script, namespace):
            code = _compile(script, source, namespace, cells)
            _execute(code, namespace, End(namespace))
    except BaseException as error:
        if os.getpid() == pid:
            raise
        _leave_child(error)
    if os.getpid() != pid:
        _leave_child(None)


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
            path, code, spec = _find(script.module)
        except ImportError as error:
            print(f"{sys.executable}: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        sys.argv[0] = path
        namespace["__package__"], namespace["__spec__"] = spec.parent, spec
        namespace["__cached__"], namespace["__loader__"] = spec.cached, spec.loader
    namespace["__file__"] = path
    cells[path] = 1
    if not script.module:
        # As it was sent: this host may not have it, and whoever waits in the queue may edit it.
        lines = source.splitlines(keepends=True)
        linecache.cache[path] = (len(source), None, lines, path)
        code = compile(source, path, "exec", dont_inherit=True)
    return code


def _find(module: str) -> tuple[str, types.CodeType, Any]:
    """What ``python -m`` would run: a module, or a package's ``__main__``.

    Raises:
      ImportError: there is none, or it has no code.
    """
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ImportError(
            f"Error while finding module specification for {module!r} "
            f"({type(error).__name__}: {error})"
        ) from None
    if spec is None:
        raise ImportError(f"No module named {module}")
    if spec.submodule_search_locations is not None:
        if module.endswith("__main__"):
            raise ImportError("Cannot use package as __main__ module")
        try:
            return _find(f"{module}.__main__")
        except ImportError as error:
            raise ImportError(
                f"{error}; {module!r} is a package and cannot be directly executed"
            ) from None
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(module) if get_code is not None else None
    if code is None or spec.origin is None:
        raise ImportError(f"No code object available for {module}")
    return spec.origin, code, spec


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


def _leave_child(error: BaseException | None) -> None:
    """End a process that the script has forked and that has come to the script's end."""
    status = 0
    if isinstance(error, SystemExit):
        status = _status(error)
    elif error is not None:
        traceback.print_exception(error)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the process ends here, whatever comes
            stream.flush()
    os._exit(status)


# --------------------------------------------------------------------------- around it


@contextlib.contextmanager
def _as_python_has_it(script: wire.Script, namespace: dict[str, Any]) -> Iterator[None]:
    """Inside it the process is a script's own, as far as that can see."""
    loop = asyncio.get_running_loop()
    before = dict(namespace)
    kept = sys.argv, sys.stdin, sys.excepthook, list(sys.path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    is_there = InteractiveShell.__dict__.get("initialized")
    namespace.clear()
    namespace.update(
        __name__="__main__", __doc__=None, __package__=None, __loader__=None, __spec__=None,
        __builtins__=builtins, __annotations__={},
    )  # fmt: skip
    sys.argv, sys.stdin = list(script.argv), NoInput()
    sys.path[:] = _path(script.folder)
    # tqdm, rich and pandas look for a notebook by it, and would output widgets and HTML.
    setattr(InteractiveShell, "initialized", classmethod(lambda cls: False))  # noqa: B010
    if os.environ.get("MPLBACKEND", "").startswith("module://"):
        del os.environ["MPLBACKEND"]  # matplotlib's for notebooks
    asyncio._set_running_loop(None)  # the rank's own, in which no asyncio.run could be
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == pid:
            asyncio._set_running_loop(loop)
            asyncio.set_event_loop(loop)
            if is_there is None:
                del InteractiveShell.initialized
            else:
                setattr(InteractiveShell, "initialized", is_there)  # noqa: B010
            namespace.clear()
            namespace.update(before)
            sys.argv, sys.stdin, sys.excepthook, sys.path[:] = kept
            for number, handler in handlers.items():
                if handler is not None:  # else it was set by C code
                    signal.signal(number, handler)


def _path(folder: str) -> list[str]:
    """``sys.path`` as a script has it: its own folder in place of the notebook's."""
    if os.environ.get("PYTHONSAFEPATH"):
        return list(sys.path)
    return [folder, *(p for p in sys.path if p not in ("", os.getcwd(), folder))]


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
        self._executors = {id(one) for one in _all_of(concurrent.futures.Executor)}
        self._functions: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        # The first finalizer of a process registers what ends all of them: not as ours.
        weakref.finalize(self, bool).detach()
        self._register, self._unregister = atexit.register, atexit.unregister
        atexit.register, atexit.unregister = self._add, self._remove  # type: ignore[assignment]

    def _add(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        if not callable(func):
            raise TypeError("the first argument must be callable")
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
            gc.collect()
            for file in [*_all_of(io.TextIOWrapper), *_all_of(io.BufferedWriter)]:
                with contextlib.suppress(Exception):  # the script may have broken it
                    if not file.closed:
                        file.flush()

    def _wait(self, patience_s: float | None) -> None:
        """For threads that are no daemons, executors' work, and processes of multiprocessing."""
        until = None if patience_s is None else time.monotonic() + patience_s
        for executor in _all_of(concurrent.futures.Executor):
            if id(executor) not in self._executors:
                executor.shutdown(wait=False)  # it does what it was given, and then ends
        while threads := [
            one for one in threading.enumerate() if one not in self._threads and not one.daemon
        ]:
            for one in threads:
                one.join(JOIN_S)
            if until is not None and time.monotonic() > until:
                return
        multiprocessing = sys.modules.get("multiprocessing")
        children = multiprocessing.active_children() if multiprocessing is not None else []
        children = [one for one in children if one._parent_pid == os.getpid()]
        for child in children:
            if child.daemon:
                child.terminate()
        while any(child.is_alive() for child in children):
            for child in children:
                child.join(JOIN_S)
            if until is not None and time.monotonic() > until:
                return


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """What is raised inside is written to ``sys.stderr``, as Python does it at its end."""
    try:
        yield
    except Exception:  # as Python itself does
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
