"""What cells set up besides names: settings of the process, which new processes must have too.

Each setting is read once when the rank is ready, and again when its variables are saved. What a
cell has changed in between is saved and set on the new process; what can't be is named. Settings
inside of other libraries' modules are not known here: matplotlib's alone is. Those of the user's
own modules are in ``ownmodules``.
"""

from __future__ import annotations
import __future__

import _signal  # type: ignore[import-not-found]  # ``signal.getsignal`` takes 6 us, this 0.1
import contextlib
import contextvars
import copy
import decimal
import functools
import gc
import importlib
import locale
import logging
import operator
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcluster.engine.leftovers import unwrapped
from jaxcluster.engine.private import contexts, options, pytrees
from jaxcluster.engine.state import ownmodules, randomness, sources
from jaxcluster.engine.state.sources import CellSources

# Where jax.config does not tell its values: those that change what a user's programs compute.
SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_disable_jit",
    "jax_random_seed_offset",
)
# They belong to the process and its place in the cluster, whatever a cell has tried.
OF_THE_PROCESS = ("jax_platforms", "jax_num_cpu_devices", "jax_enable_preemption_service")
OF_THE_CLUSTER = ("JAXCLUSTER_", "IPP_", "JPY_")
FUTURE = "from __future__"
_FUTURE_FLAGS: int = functools.reduce(
    operator.or_, (getattr(__future__, n).compiler_flag for n in __future__.all_feature_names)
)


@dataclass(frozen=True)
class Setting:
    """One setting: how to read it, and how to set it to what was read."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


class Settings:
    """The settings of one rank.

    Attributes:
      context: what all cells run in. numpy and decimal keep their settings in the context of who
        sets them, and each cell is a task, whose own context ends with it.
      shell: IPython's.
      mesh: what ``jax.set_mesh`` has set, after the last cell.
      entered: the contexts of JAX that the main thread is in, then.
      asked: what all were when ``are_as_asked_last`` was asked; None where it is not known.
      set_handler: sets a handler of a signal, for cells.
    """

    def __init__(self) -> None:
        self.context = contextvars.copy_context()
        self.shell: Any = None
        self.mesh: Any = None
        self.entered: dict[str, Any] = {}
        self.set_handler: Callable[[int, Any], object] = signal.signal
        self._sources = CellSources({}, None)
        self._own = ownmodules.OwnModules()
        self._settings: dict[str, Setting] = {}
        self._at_start: dict[str, Any] = {}
        self._kept: dict[str, Any] | None = None  # what cells had changed, while others are set
        self._windows = 0  # in which others were set for a while

    def begin(self, shell: Any, cells: MutableMapping[str, int] | None = None) -> None:
        """Read all settings. On the main thread, when all has been set up but by cells.

        Args:
          cells: the number of each cell, by the name of its file.
        """
        self.shell = shell
        self._sources = CellSources({} if cells is None else cells, shell)
        self.context = contextvars.copy_context()
        self.note()
        options.note_definitions()
        self._settings = self._all_settings()
        self._at_start = self.read()

    def note(self) -> None:
        """After each cell: what only its own thread can read."""
        self.mesh, self.entered = self._of_main()
        self._own.note()

    def _of_main(self) -> tuple[Any, dict[str, Any]]:
        """What JAX keeps for the main thread; on another thread what that was after a cell."""
        if threading.current_thread() is threading.main_thread():
            return context_mesh(), contexts.entered()
        return self.mesh, self.entered

    @contextlib.contextmanager
    def others(self) -> Iterator[None]:
        """Within, settings may be set for a while: ``changed`` goes on as if they were not.

        On the main thread. Values are loaded so, and a rank may be saved just then.
        """
        self._kept = self.changed()
        try:
            yield
        finally:
            self._windows += 1
            self._kept = None

    def changed(self) -> dict[str, Any]:
        """The settings that cells have changed. Any thread."""
        while (kept := self._kept) is None:
            windows, found = self._windows, self._differing(self._at_start, self.read())
            if self._kept is None and self._windows == windows:
                return found
        return dict(kept)

    def _differing(self, before: Mapping[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        gone = [n for n in before if n not in now and n.startswith(("os.", "logging l"))]
        now = now | dict.fromkeys(gone)
        return {name: now[name] for name in now if not _equal(now[name], before.get(name))}

    def read(self) -> dict[str, Any]:
        """All of them as they are now. Any thread; some ms with modules of the user's."""

        def read() -> dict[str, Any]:
            found = {}
            for name, setting in self._settings.items():
                with contextlib.suppress(Exception):  # what can't be read was not set by a cell
                    found[name] = setting.read()
            return found

        found: dict[str, Any] = self.context.copy().run(read)
        return _parted(found)

    def _write_signals(self, handlers: Mapping[str, Any]) -> None:
        for name, handler in handlers.items():
            number = int(name) if name.isdecimal() else getattr(signal, name)
            self.set_handler(number, handler)

    def restore(self, name: str, value: Any) -> None:
        """Set what ``changed`` had read. On the main thread.

        Raises:
          Exception: why it can't be.
        """
        group, _, part = name.partition(" ")
        if group in _PARTED:
            self.context.run(self._settings[group].write, {part: value})
        else:
            self.context.run(self._settings[name].write, value)

    def now(self, names: Iterable[str]) -> dict[str, Any]:
        """What these are now, as ``restore`` takes them; those that are not there are missing."""
        found = self.read()
        return {name: found[name] for name in names if name in found}

    def _all_settings(self) -> dict[str, Setting]:
        return {
            "os.environ": Setting(_read_environ, _write_environ),
            # Before JAX's, whose options other modules may define.
            "the current folder": Setting(os.getcwd, _change_folder),
            "sys.path": Setting(lambda: list(sys.path), _write_path),
            "sys.argv": Setting(lambda: list(sys.argv), lambda value: setattr(sys, "argv", value)),
            "jax.config": Setting(_read_config, _write_config),
            "jax.set_mesh": Setting(lambda: self._of_main()[0], set_context_mesh),
            "context": Setting(lambda: self._of_main()[1], contexts.enter),
            "pytree": Setting(pytrees.registered_by_cells, _write_pytrees),
            # Before numpy's: %precision sets numpy's precision, and resets its formatter.
            "IPython": Setting(self._read_ipython, self._write_ipython),
            randomness.PYTHON: Setting(random.getstate, random.setstate),
            randomness.NUMPY: Setting(randomness.numpy_state, randomness.set_numpy_state),
            "np.seterr": Setting(np.geterr, lambda value: np.seterr(**value)),
            "np.seterrcall": Setting(np.geterrcall, np.seterrcall),
            "np.setbufsize": Setting(np.getbufsize, np.setbufsize),
            "np.set_printoptions": Setting(np.get_printoptions, _write_printoptions),
            "decimal's context": Setting(lambda: decimal.getcontext().copy(), decimal.setcontext),
            "the locale": Setting(
                lambda: locale.setlocale(locale.LC_ALL),
                lambda value: locale.setlocale(locale.LC_ALL, value),
            ),
            "warnings.filters": Setting(lambda: list(warnings.filters), _write_filters),
            "logging": Setting(_read_logging, _write_logging),
            "signal": Setting(_read_signals, self._write_signals),
            "sys.setrecursionlimit": Setting(sys.getrecursionlimit, sys.setrecursionlimit),
            "gc": Setting(lambda: (gc.isenabled(), gc.get_threshold()), _write_gc),
            "socket.setdefaulttimeout": Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
            "matplotlib": Setting(_read_matplotlib, _write_matplotlib),
            ownmodules.GROUP: Setting(self._own.read, self._write_modules),
            sources.NAME: Setting(self._sources.read, self._sources.write),
        }

    # ------------------------------------------------------------------ IPython

    def _read_ipython(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.shell is None:
            return found
        loaded = [name for name in self.shell.extension_manager.loaded if name != "storemagic"]
        for name in loaded:
            found[f"%load_ext {name}"] = True
        for name, command in self.shell.alias_manager.aliases:
            found[f"%alias {name}"] = command
        if (magics := self._autoreload()) is not None:
            values = vars(magics._reloader).items()
            known = copy.deepcopy({k: v for k, v in values if k in _OF_AUTORELOAD})
            patcher = getattr(magics._reloader, "deduper_reloader", None)  # IPython 8 has none
            found["%autoreload"] = known | {_PATCHES: getattr(patcher, "enabled", None)}
        found["%xmode"] = self.shell.InteractiveTB.mode
        found[FUTURE] = self.future
        for part, trait, label in self._traits():
            kind: Any = type(part)  # it enters some defaults only when they are first asked for
            found[label] = part._trait_values.get(trait, _default_of(kind, trait))
        return found

    @property
    def future(self) -> int:
        """The flags of the features that a cell's ``from __future__ import`` has set for all."""
        return int(getattr(getattr(self.shell, "compile", None), "flags", 0)) & _FUTURE_FLAGS

    @future.setter
    def future(self, flags: int) -> None:
        compiler = self.shell.compile
        compiler.flags = compiler.flags & ~_FUTURE_FLAGS | flags

    def _autoreload(self) -> Any:
        return self.shell.magics_manager.registry.get("AutoreloadMagics")

    def _write_modules(self, found: Mapping[str, Any]) -> None:
        self._own.write(found)
        if self.shell is not None and (magics := self._autoreload()) is not None:
            magics.post_execute_hook()  # it notes what has been imported, and when that was edited

    def _traits(self) -> Iterator[tuple[Any, str, str]]:
        formatters = self.shell.display_formatter.formatters.values()
        for part in [*self.shell.configurables, *formatters]:
            values = part._trait_values
            for name, label in _configurable(type(part)):  # type: ignore[arg-type]
                if isinstance(values.get(name), _PLAIN):
                    yield part, name, label

    def _write_ipython(self, settings: Mapping[str, Any]) -> None:
        for name, value in settings.items():
            kind, _, rest = name.partition(" ")
            if kind == "%load_ext":
                self.shell.extension_manager.load_extension(rest)
            elif kind == "%alias":
                self.shell.alias_manager.define_alias(rest, value)
            elif kind == "%autoreload":
                reloader = self._autoreload()._reloader
                vars(reloader).update({k: v for k, v in value.items() if k != _PATCHES})
                if value[_PATCHES] is not None:
                    reloader.deduper_reloader.enabled = value[_PATCHES]
            elif name == FUTURE:
                self.future = value
            elif kind == "%xmode":
                self.shell.InteractiveTB.set_mode(mode=value)
            else:
                owner, _, trait = rest.partition(".")
                for part, known, _ in self._traits():
                    if type(part).__name__ == owner and known == trait:
                        setattr(part, trait, value)


_PATCHES = "patches"  # not so in ``%autoreload 2-``
# Mode 1 has what ``%aimport`` names in ``modules``.
_OF_AUTORELOAD = ("enabled", "check_all", "autoload_obj", "modules", "skip_modules", "hide_errors")
_PLAIN = (bool, int, float, str, type(None))


@functools.cache
def _configurable(part: Any) -> tuple[tuple[str, str], ...]:
    """The names of what can be configured of a part of IPython, and of the settings."""
    names = part.class_trait_names(config=True)
    return tuple((name, f"%config {part.__name__}.{name}") for name in names)


@functools.cache
def _default_of(part: Any, trait: str) -> Any:
    value = getattr(part.class_traits()[trait], "default_value", None)
    return value if isinstance(value, _PLAIN) else None


# Of these each part is a setting of its own, as in "os.environ PATH".
_PARTED = (
    *("os.environ", "jax.config", "context", "pytree", "logging", "signal", "IPython"),
    "matplotlib",
    ownmodules.GROUP,
)


def _parted(found: Mapping[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, value in found.items():
        if name in _PARTED:
            parts |= {f"{name} {part}": one for part, one in value.items()}
        else:
            parts[name] = value
    return parts


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        if isinstance(one, tuple) and isinstance(other, tuple):
            return len(one) == len(other) and all(map(_equal, one, other))
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
        if isinstance(one, np.ndarray):
            return bool(np.array_equal(one, other))
        if isinstance(one, decimal.Context):
            return repr(one) == repr(other)
        return bool(one == other)
    except Exception:  # the values' classes may do anything
        return one is other


# --------------------------------------------------------------------------- reading and setting


def _read_environ() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(OF_THE_CLUSTER)}


def _write_environ(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    time.tzset()


def _read_config() -> dict[str, Any]:
    import jax

    try:
        values = contexts.values_of_process()
    except AttributeError:
        values = {name: getattr(jax.config, name, None) for name in SETTINGS}
    return options.with_modules({k: v for k, v in values.items() if k not in OF_THE_PROCESS})


def _write_config(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        options.update(name, value)


def context_mesh() -> Any:
    """What ``jax.set_mesh`` has set on this thread; some microseconds."""
    import jax

    try:
        return jax.sharding.get_mesh()
    except (AttributeError, ValueError):  # an older jax; a cell that has ended inside of a trace
        return None


def set_context_mesh(mesh: Any) -> None:
    import jax

    if mesh is not None:
        jax.set_mesh(mesh)


def _write_pytrees(registered: Mapping[str, tuple[type, pytrees.Registration]]) -> None:
    for cls, how in registered.values():
        pytrees.register(cls, how)  # unless its module has done it


def _change_folder(path: str) -> None:
    with contextlib.suppress(OSError):  # another host, or it was removed: what uses it will say so
        os.chdir(path)


def _write_path(paths: list[str]) -> None:
    """In the order that cells have made; what this process has besides comes last."""
    sys.path[:] = [*paths, *(p for p in sys.path if p not in paths)]
    importlib.invalidate_caches()


def _write_printoptions(options: dict[str, Any]) -> None:
    known = np.get_printoptions()
    np.set_printoptions(**{k: v for k, v in options.items() if k in known})


def _write_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    getattr(warnings, "_filters_mutated", lambda: None)()


def _write_gc(value: tuple[bool, tuple[int, int, int]]) -> None:
    gc.set_threshold(*value[1])
    (gc.enable if value[0] else gc.disable)()


def _read_signals() -> dict[str, Any]:
    """All but SIGINT, which is how a cell is stopped."""
    return {name: unwrapped(_signal.getsignal(number)) for number, name in _SIGNALS.items()}


_KNOWN_SIGNALS = {int(one): one.name for one in signal.Signals}
_SIGNALS = {
    int(number): _KNOWN_SIGNALS.get(int(number), str(number))
    for number in sorted(signal.valid_signals() - {signal.SIGINT})
}


def _read_logging() -> dict[str, Any]:
    """Levels of loggers, and the handlers that cells have added."""
    loggers = {"root": logging.getLogger()}
    for name, one in list(logging.Logger.manager.loggerDict.items()):
        if isinstance(one, logging.Logger):
            loggers[name] = one
    found: dict[str, Any] = {"logging.disable": logging.root.manager.disable}
    for name, logger in loggers.items():
        if (logger.level, logger.propagate, logger.disabled) != (logging.NOTSET, True, False):
            found[f"level of {name}"] = (logger.level, logger.propagate, logger.disabled)
        for number, handler in enumerate(logger.handlers):
            found[f"handler {number} of {name}"] = _Handler.of(handler)
    return found


@dataclass(frozen=True)
class _Handler:
    """A log handler that goes to a standard stream, a file or nowhere; others stay as they are."""

    kind: str
    level: int
    formatter: Any
    target: Any

    @classmethod
    def of(cls, handler: logging.Handler) -> Any:
        if type(handler) is logging.NullHandler:
            return cls("null", handler.level, None, None)
        if type(handler) is logging.FileHandler:
            return cls("file", handler.level, handler.formatter, handler.baseFilename)
        if type(handler) is logging.StreamHandler:
            for name in ("stdout", "stderr"):
                if handler.stream in (getattr(sys, name), getattr(sys, f"__{name}__")):
                    return cls("stream", handler.level, handler.formatter, name)
        return handler

    def make(self) -> logging.Handler:
        made: logging.Handler
        if self.kind == "null":
            made = logging.NullHandler()
        elif self.kind == "file":
            made = logging.FileHandler(self.target)
        else:
            made = logging.StreamHandler(getattr(sys, self.target))
        made.setLevel(self.level)
        made.setFormatter(self.formatter)
        return made


def _write_logging(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        what, _, of = name.partition(" of ")
        logger = logging.getLogger(None if of == "root" else of)
        if name == "logging.disable":
            logging.disable(value)
        elif what == "level":
            level, logger.propagate, logger.disabled = value or (logging.NOTSET, True, False)
            logger.setLevel(level)
        elif isinstance(value, _Handler):
            if value not in map(_Handler.of, logger.handlers):  # by an import
                logger.addHandler(value.make())
        elif value is not None:
            logger.addHandler(value)


def _read_matplotlib() -> dict[str, Any]:
    if "matplotlib" not in sys.modules:
        return {}
    matplotlib = sys.modules["matplotlib"]
    now, default = matplotlib.rcParams, matplotlib.rcParamsDefault
    # As a plain dict: it warns of each old name that is looked at.
    return {
        name: dict.__getitem__(now, name)
        for name in list(dict.keys(now))
        if name != "backend" and dict.__getitem__(now, name) != dict.get(default, name)
    }


def _write_matplotlib(values: Mapping[str, Any]) -> None:
    import matplotlib

    parameters: Any = matplotlib.rcParams
    parameters.update(values)
