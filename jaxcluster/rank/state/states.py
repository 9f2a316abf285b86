"""A rank's answers when its variables are saved, and loaded again.

With them come the cells, and the states of ``random`` and ``numpy.random``. So do the changes by
cells to options of ``jax.config``, environment variables, the folder and ``sys.path``.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import os
import random
import re
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxcluster.rank.arrays import is_array, leaves_of
from jaxcluster.rank.names import is_users
from jaxcluster.rank.places import cell_number
from jaxcluster.rank.private.kinds import is_imported, kinds, registered_by_cells
from jaxcluster.rank.state import classes, file, pickles
from jaxcluster.rank.state.file import BadFile, StateFile
from jaxcluster.rank.state.pickles import SETTING, contents
from jaxcluster.wire.ops.saving import Bind, Checkpoint, Drop, Load, Made, Save, Saved

if TYPE_CHECKING:
    from jaxcluster.rank.control import Request

OURS = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name")  # options of the start
RESULT = re.compile(r"_\d+")  # IPython's names of what cells have ended in
OF_A_RANK = {f"{SETTING}random", f"{SETTING}numpy.random"}  # settings that no other may have
LITERALS = (bool, int, float, complex, str, bytes, type(None))
COMMON = type, ModuleType, BuiltinFunctionType, np.dtype, np.ufunc, jax.sharding.PartitionSpec


class States:
    """Answers for the namespace of one rank."""

    def __init__(self, rank: int, lost: dict[str, str]) -> None:
        self.rank, self.lost = rank, lost
        self.namespace: dict[str, Any] = {}
        self._shell: Any = None
        self._before: dict[str, Any] = {}  # the settings before the first cell
        self._held: dict[str, dict[str, Any]] = {}  # values that are not bound yet, by token
        self._dropped: deque[str] = deque(maxlen=64)
        self._saving = threading.Lock()

    def attach(self, shell: Any) -> None:
        """Cells run in this shell from now on."""
        self._shell, self.namespace = shell, shell.user_ns
        self._known = SimpleNamespace(**globals(), shell=shell)  # what settings' calls name
        self._before = self._settings()

    def save(self, request: Request[Save] | Request[Checkpoint]) -> Saved:
        """``save``, whatever the main thread does; ``checkpoint`` on it, among the cells.

        Raises:
          BadFile: no place has room.
        """
        with self._saving:
            names = {n: v for n, v in dict(self.namespace).items() if is_users(n, v)}
            values = {
                **changes(self._before, self._settings()),
                **{
                    f"{SETTING}{cls}": ("classes.register", cls, how)
                    for cls, how in registered_by_cells()
                },
                **{f"_{n}": value for n, value in dict(self.namespace.get("_oh", ())).items()},
                **names,
            }
            pickled = pickles.Pickler(values, self.namespace)
            path = self._write(pickled, request.body)
        return Saved(
            str(path),
            path.stat().st_size,
            [name for name in pickled.values if name in names],
            {name: why for name, why in pickled.lost.items() if name in names},
            sorted(pickled.spanning & names.keys()),
            {name: why for name, why in self.lost.items() if name not in self.namespace},
            {n.strip(): why for n, why in pickled.lost.items() if n.startswith(SETTING)},
        )

    def _write(self, pickled: pickles.Pickler, body: Save | Checkpoint) -> Path:
        """Write to the first place that has room; returns the file's path."""
        parts = [*pickled.parts, pickled.file.getbuffer()]
        about = pickled.index(compare=body.compare)
        nbytes, whys = sum(part.nbytes for part in parts), list[str]()
        for place in body.places:
            path = Path(place.folder) / f"rank-{self.rank}.state"
            try:
                if place.room is not None and nbytes > place.room:
                    raise BadFile(f"{place.folder} has room for {place.room >> 20} MiB")
                file.write(path, parts, about)
                return path
            except (OSError, BadFile) as error:  # or the place was removed: nobody waits for it
                whys.append(str(error))
                path.unlink(missing_ok=True)
        raise BadFile(f"{nbytes >> 20} MiB found no room: {'; '.join(whys)}")

    def load(self, request: Request[Load]) -> Made:
        """``load``: make all values, and hold them until ``bind``. On the main thread.

        Raises:
          BadFile: a file was changed.
        """
        body, before = request.body, self._settings()
        if not body.files:
            return Made([])
        files = {rank: StateFile(Path(path)) for rank, path in body.files.items()}
        base = min(files) if body.own is None else body.own
        classes.kept.set(None if body.only is None else set())
        try:
            made, lost = pickles.load(files, base, self.namespace, self._make)
        finally:
            self._make(changes(self._settings(), before))
        wanted = made.keys() if body.only is None else {*body.only}
        if body.own is None:
            wanted = anothers(made, files, base, body.num_processes)
        names = {name: value for name, value in made.items() if name in wanted}
        self.hold(body.token, names)
        told = [n for n in names if not RESULT.fullmatch(n) and not n.startswith(SETTING)]
        return Made(told, lost)

    def hold(self, token: str, names: dict[str, Any]) -> None:
        """Hold what was read or pushed until ``bind``."""
        self._held[token] = names
        if token in self._dropped:  # meanwhile
            self._held.pop(token, None)

    def bind(self, request: Request[Bind]) -> Made:
        """``bind``: all names that were read and are not lost. On the main thread."""
        lost, namespace = request.body.lost, self.namespace
        found = self._held.pop(request.body.token, {})
        settings = {name: found.pop(name) for name in [*found] if name.startswith(SETTING)}
        names = {name: value for name, value in found.items() if name not in lost}
        for name in lost:
            namespace.pop(name, None)
        namespace.update(names)
        self.lost.update(lost)
        left = self._make(changes(self._settings(), self._before | settings) if settings else {})
        results = {int(name[1:]): names.pop(name) for name in [*names] if RESULT.fullmatch(name)}
        if results:
            namespace.setdefault("_oh", {}).update(results)
            last = [value for _, value in sorted(results.items())][:-4:-1]
            namespace.update(zip(("_", "__", "___"), last, strict=False))
        return Made([*names], left)

    def drop(self, request: Request[Drop]) -> None:
        """``drop``: what was read, or is being read, is not bound."""
        self._dropped.append(request.body.token)
        self._held.pop(request.body.token, None)

    def _settings(self) -> dict[str, Any]:
        """Calls that make all as it is now that may change at any time."""
        history, items = self._shell.history_manager, list(linecache.cache.items())
        parsed, raw = history.input_hist_parsed[:], history.input_hist_raw[:]
        drawn = jax.tree.map(lambda x: np.asarray(x).tolist(), np.random.get_state(legacy=False))
        folder = os.readlink("/proc/self/cwd")  # os.getcwd raises where it was removed
        found: dict[str, Any] = {
            **{f"${n}": ("os.environ.__setitem__", n, v) for n, v in os.environ.items()},
            **{n: ("jax.config.update", n, v) for n, v in jax.config.values.items()},
            "sys.path": ("sys.path.__setitem__", slice(None), sys.path[:]),
            "the folder": ("os.chdir", folder),
            "random": ("random.setstate", random.getstate()),
            "numpy.random": ("np.random.set_state", drawn),
            "sources": ("linecache.cache.update", {f: s for f, s in items if cell_number(f)}),
            "In": ("shell.history_manager.input_hist_parsed.__setitem__", slice(None), parsed),
            "raw": ("shell.history_manager.input_hist_raw.__setitem__", slice(None), raw),
            "count": ("shell.__setattr__", "execution_count", self._shell.execution_count),
        }
        return {f"{SETTING}{name}": call for name, call in found.items() if name not in OURS}

    def _make(self, calls: Mapping[str, Any]) -> dict[str, str]:
        """Make the calls that settings are; returns those that failed, and why."""
        left = {}
        for name, call in calls.items():
            try:
                attrgetter(call[0])(self._known)(*call[1:])
            except Exception as error:
                left[name.strip()] = str(error)
        return left


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The calls that turn the settings of one moment into those of another. Pure."""
    gone = {n: ("os.environ.pop", n[2:], None) for n in before if n not in after}
    return gone | {name: call for name, call in after.items() if before.get(name) != call}


# ---------------------------------------------------------------------- for new ranks


def anothers(
    made: Mapping[str, Any], files: Mapping[int, StateFile], base: int, num_processes: int
) -> set[str]:
    """The names of a rank that a new one may have.

    They can't differ between ranks. With another number of ranks they are also those that were
    equal on all, whose files these are.
    """
    spanning, own = files[base].about["spanning"], files[base].about["digests"]
    found = {n for n, v in made.items() if (_spans(v) if n in spanning else _is_common(v))}
    found |= {name for name in made if name.startswith(SETTING)} - OF_A_RANK
    if len(files) == num_processes != jax.process_count():
        others = [file.about["digests"] for file in files.values()]
        found |= {n for n in own if own[n] and all(one.get(n) == own[n] for one in others)}
    return found


def _spans(value: Any) -> bool:
    """Whether all arrays of a pytree span processes.

    Python's values beside them count as equal: all ranks give them to the same programs.
    """
    leaves: list[Any] = []
    with contextlib.suppress(Exception):  # too many, or a user's class that raises
        leaves = [leaf for _, leaf in leaves_of(value)]
    here = {one.is_fully_addressable for one in leaves if is_array(one)}  # all, of a single process
    return len(here) == 1 and all(is_array(one) or _is_common(one, True) for one in leaves)


def _is_common(value: Any, is_option: bool = False, depth: int = 12) -> bool:
    """Whether all ranks have the same: a module, a mesh, a function that holds only such values.

    Args:
      is_option: a library's function holds it, as the ``argnums`` of a gradient. Python's values
        are no values of the rank's own there.
    """
    if isinstance(value, jax.sharding.Sharding):
        value = getattr(value, "mesh", None)  # others are of single devices
    if isinstance(value, jax.sharding.Mesh):  # each rank may have one of its own devices
        is_own = {one.process_index for one in value.devices.flat} == {jax.process_index()}
        return not is_own or jax.process_count() == 1
    if isinstance(value, COMMON) or (callable(value) and is_imported(value)):
        return True
    if is_option and type(value) in (*LITERALS, object):
        return True
    held: Any = None
    if isinstance(value, functools.partial):
        is_option = is_imported(value.func)
        held = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, (kinds().jitted, jax.custom_jvp, jax.custom_vjp)):
        held = [getattr(value, "__wrapped__", None)]
    elif isinstance(value, FunctionType):
        is_option = value.__globals__.get("__name__") != "__main__"
        cells = [contents(cell) for cell in value.__closure__ or ()]
        held = [one for cell in cells for one in cell if one is not None]
        if not _has_literals(value):
            held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    elif isinstance(value, tuple) and (value or is_option):  # an optimizer is one of functions
        held = value
    elif isinstance(value, dict) and is_option:
        held = value.values()
    is_known = held is not None and depth > 0
    return is_known and all(_is_common(one, is_option, depth - 1) for one in held)


def _has_literals(function: FunctionType) -> bool:
    """Whether a function's defaults are those that its source has, on any rank."""
    with contextlib.suppress(OSError, SyntaxError, ValueError, IndexError, AttributeError):
        given: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        for one in filter(None, (*given.args.defaults, *given.args.kw_defaults)):
            ast.literal_eval(one)
        return True
    return False
