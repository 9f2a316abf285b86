"""Puts right after a cell what it has broken and all that comes after needs.

What a cell changes on purpose stays as it is, as in a notebook: streams that can be written to,
hooks, ``print``, and a ``len`` of its own that answers as the old one does. One that answers
otherwise does not: all of Python's code and ours counts on it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # see ``repair``
import builtins
import operator
import signal
import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from jaxcluster.engine import log

_builtins: dict[str, Any] = dict(builtins.__dict__)
_whole: tuple[list[str], list[Any]] = ([], [])  # names and values when they were last found whole
_all, _callable, _len, _list, _map = all, callable, len, list, map
_bool, _int, _iter, _next, _tuple, _type = bool, int, iter, next, tuple, type
_HIDDEN = ("exit", "quit")  # by IPython, while a cell runs
_streams: dict[str, Any] = {}  # the rank's own, by their names in ``sys``


def _opens(function: Callable[..., Any]) -> bool:
    with function("/dev/null", "rb") as file:
        return bool(file.read() == b"")


# Of a function that has another in its place: whether this one answers as it did.
_ANSWERS: dict[str, Callable[[Any], bool]] = {
    "all": lambda f: f([1, 1]) is True and f([1, 0]) is False,
    "any": lambda f: f([0, 1]) is True and f([0, 0]) is False,
    "callable": lambda f: f(_len) is True and f(()) is False,
    "chr": lambda f: f(97) == "a",
    "enumerate": lambda f: _list(f("a")) == [(0, "a")],
    "filter": lambda f: _list(f(None, [0, 1])) == [1],
    "getattr": lambda f: f(1j, "imag") == 1.0 and f((), "none", 5) == 5,
    "hasattr": lambda f: f((), "count") is True and f((), "none") is False,
    "hash": lambda f: f(1) == 1,
    "id": lambda f: f(_len) == f(_len) != f(_list),
    "isinstance": lambda f: f((), _tuple) is True and f((), (_list, _int)) is False,
    "issubclass": lambda f: f(_bool, _int) is True and f(_int, _bool) is False,
    "iter": lambda f: _next(f((5,))) == 5,
    "len": lambda f: f(()) == 0 and f((1, 1)) == 2,
    "map": lambda f: _list(f(_len, [(), (1,)])) == [0, 1],
    "max": lambda f: f(1, 2) == 2 and f([], default=3) == 3,
    "min": lambda f: f(1, 2) == 1 and f([], default=3) == 3,
    "next": lambda f: f(_iter((5,))) == 5 and f(_iter(()), 6) == 6,
    "open": _opens,
    "ord": lambda f: f("a") == 97,
    "range": lambda f: _list(f(1, 3)) == [1, 2],
    "repr": lambda f: f("a") == "'a'",
    "reversed": lambda f: _list(f([1, 2])) == [2, 1],
    "sorted": lambda f: f([2, 1]) == [1, 2] and f([1, 2], reverse=True) == [2, 1],
    "sum": lambda f: f([1, 2]) == 3,
    "zip": lambda f: _list(f("ab", "c")) == [("a", "c")],
}

# Packages that can't be imported twice in one process (jaxlib ends it), and that we import where we
# need them.
_PACKAGES = ("jax", "jaxcluster", "jaxlib", "numpy")
_imported: dict[str, ModuleType] = {}  # their modules by name, when they were last found whole
_upper: tuple[list[str], list[ModuleType]] = ([], [])  # of these the packages' and their own parts
_num_modules = 0  # all that were imported then

# What ranks need of the modules of Python, and of the public ones of jax and numpy.
_functions: dict[ModuleType, dict[str, Any]] = {}
_PUBLIC = ("jax", "numpy")
_WHOSE = sys.stdlib_module_names - {"builtins", "__main__"} | {*_PUBLIC}


def _note_functions(modules: dict[str, Any]) -> None:
    for name, module in modules.items():
        above, *parts = name.split(".")
        if (
            above in _WHOSE
            and isinstance(module, ModuleType)  # None, where somebody forbids it
            and module not in _functions
            and not (above in _PUBLIC and any(part[0] == "_" for part in parts))
        ):
            _functions[module] = {
                name: value
                for name, value in vars(module).items()
                if callable(value) or isinstance(value, ModuleType)
            }


_note_functions(dict(sys.modules))  # at once: another thread may import


class _Again(Loader):
    """Finds modules of the packages that a cell has taken out of ``sys.modules``: those that were.

    A second import would be another module, or the end of the process.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        known = name in _imported and target is None  # else it is to be loaded again on purpose
        return ModuleSpec(name, _Again()) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self.module = _imported[spec.name]
        self.spec = self.module.__spec__
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


def _is_in_its_place(name: str, old: Any, new: Any) -> bool:
    """Whether what a cell has put in the place of one does what that did.

    It is called for it, once: what raises or never returns would do so to everybody else.
    """
    if not _callable(new):
        return False
    if (answers := _ANSWERS.get(name)) is not None:
        try:
            return answers(new)
        except BaseException:  # it may be the user's function
            return False
    return _type(old) is not _type  # in a class's place no other thing serves: values are of it


def keep_streams() -> None:
    """Have ``sys.stdout`` and ``sys.stderr`` be the ones that come back."""
    _streams.update(stdout=sys.stdout, stderr=sys.stderr)


def _is_writable(stream: Any) -> bool:
    """Whether it takes text, and lets IPython have its ``write`` go by its own, as each cell does.

    ``None`` and a closed file do not: no cell could print, or even begin.
    """
    try:
        stream.write = stream.write
        return (
            callable(stream.write)
            and callable(stream.flush)
            and not getattr(stream, "closed", False)
        )
    except Exception:  # of the user's class, or it has no such thing
        return False


def _repair_streams() -> None:
    for name, own in _streams.items():
        now = getattr(sys, name, None)
        if now is not own and not _is_writable(now):
            setattr(sys, name, own)
            log.write(f"A cell had left a sys.{name} that can't be written to: put back")


def repair(on_sigint: Callable[..., Any]) -> None:
    """On the main thread: what each Jupyter kernel has between cells.

    SIGINT's handler, jax's modules, faulthandler, streams and open descriptors for output. Builtins
    must be whole (see ``repair_builtins``).
    """
    names, modules = _upper
    if len(sys.modules) != _num_modules or not all(
        map(operator.is_, map(sys.modules.get, names), modules)
    ):
        repair_imports()
    # ``signal``'s own functions look for the answers in enums first: 18 us between cells, these 1.
    if _signal.getsignal(signal.SIGINT) != on_sigint:
        signal.signal(signal.SIGINT, on_sigint)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))
    log.watch_again()
    log.reopen_streams()
    _repair_streams()


def repair_builtins() -> None:
    """Bring back what is gone from ``builtins``, or does not do its work. Any thread; 5 us.

    Mostly nothing has changed since the last look, not even the order: then no name is looked up.
    """
    global _whole
    now = builtins.__dict__
    names, values = _list(now), _list(now.values())  # at once: another thread may change it
    if (
        _len(names) == _len(values) == _len(_whole[0])
        and _all(_map(operator.is_, values, _whole[1]))
        and _all(_map(operator.is_, names, _whole[0]))
    ):
        return
    back = []
    for name, value in _builtins.items():
        new = now.get(name)
        if new is not value and (name not in now or not _is_in_its_place(name, value, new)):
            now[name] = value
            if name not in _HIDDEN:
                back.append(name)
    _whole = (_list(now), _list(now.values()))
    if back:
        log.write(f"A cell had changed these builtins, which were put back: {', '.join(back)}")


def repair_imports() -> None:
    """Bring back modules of jax and numpy that are gone from ``sys.modules``. Any thread.

    What has come in their place is half of a second import, which jax refuses in the middle.
    """
    global _imported, _upper, _num_modules
    now = sys.modules
    lost = {name: module for name, module in _imported.items() if now.get(name) is not module}
    if lost:
        halves = [n for n in list(now) if n.partition(".")[0] in lost and n not in _imported]
        for name in halves:
            now.pop(name, None)
        now.update(lost)
        for name, module in lost.items():
            above, _, part = name.rpartition(".")
            if isinstance(getattr(now.get(above), part, None), ModuleType):
                setattr(now[above], part, module)
        log.write(f"A cell had changed {len(lost)} modules of {', '.join(_PACKAGES)}: put back")
    _num_modules = len(now)
    _imported = {  # not what somebody has put there that is no module: it is no import's
        name: module
        for name, module in list(now.items())
        if str(name).partition(".")[0] in _PACKAGES and issubclass(type(module), ModuleType)
    }
    _note_functions(_imported)
    if _Again not in sys.meta_path:
        sys.meta_path.insert(0, _Again)
    upper = {name: module for name, module in _imported.items() if name.count(".") < 2}
    _upper = list(upper), list(upper.values())


def repair_modules() -> None:
    """Bring back what modules of Python, numpy and jax have lost, or can't be called. Any thread.

    That takes a millisecond: it is for where a cell or something of ours has failed, and before
    variables are saved.
    """
    repair_builtins()
    repair_imports()
    back = []
    for module, functions in list(_functions.items()):
        now = vars(module)
        for name, value in functions.items():
            new = now.get(name)
            if new is not value and not callable(new) and not isinstance(new, ModuleType):
                now[name] = value
                back.append(f"{module.__name__}.{name}")
    if back:
        log.write(f"A cell had broken these, which were put back: {', '.join(back)}")
