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
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxcluster.rank.arrays import is_array, leaves_of
from jaxcluster.rank.names import is_users
from jaxcluster.rank.places import cell_number
from jaxcluster.rank.private.kinds import is_imported, kinds, register, registered_by_cells
from jaxcluster.rank.state import classes, file, pickles
from jaxcluster.rank.state.file import BadFile, StateFile, file_name
from jaxcluster.rank.state.pickles import REGISTERED, SETTINGS, contents
from jaxcluster.wire.ops.saving import Bind, Checkpoint, Drop, Load, Made, Save, Saved

if TYPE_CHECKING:
    from jaxcluster.rank.control import Request

OURS = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name")  # options of the start
RESULT = re.compile(r"_\d+")  # IPython's names of what cells have ended in
LITERALS = (bool, int, float, complex, str, bytes, type(None))
OF_JAX = jax.sharding.Mesh, jax.sharding.Sharding, jax.sharding.PartitionSpec
COMMON = type, ModuleType, BuiltinFunctionType, np.dtype, np.ufunc, *OF_JAX
DEPTH = 12  # of functions that hold functions


class States:
    """Answers for the namespace of one rank."""

    def __init__(self, rank: int, lost: dict[str, str]) -> None:
        self.rank, self.lost = rank, lost
        self.namespace: dict[str, Any] = {}
        self._shell: Any = None
        self._before: dict[Any, Any] = {}  # the settings before the first cell
        # What was read, until it is bound: names, and what cells have changed besides.
        self._held: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._dropped: deque[str] = deque(maxlen=64)
        self._saving = threading.Lock()

    def attach(self, shell: Any) -> None:
        """Cells run in this shell from now on."""
        self._shell, self.namespace, self._before = shell, shell.user_ns, changeable()
        classes.install(shell)

    def save(self, request: Request[Save] | Request[Checkpoint]) -> Saved:
        """``save``, whatever the main thread does; ``checkpoint`` on it, among the cells.

        Raises:
          BadFile: no place has room.
        """
        with self._saving:
            names = {n: v for n, v in dict(self.namespace).items() if is_users(n, v)}
            history = self._shell.history_manager
            files = [file for file in list(linecache.cache) if cell_number(file) is not None]
            found = {
                "changed": changes(self._before, changeable()),
                "random": (random.getstate(), np.random.get_state(legacy=False)),
                "cells": {file: linecache.getlines(file) for file in files},
                "history": (history.input_hist_parsed[:], history.input_hist_raw[:]),
                "count": self._shell.execution_count,
            }
            results = dict(self.namespace.get("_oh", ())).items()
            values = {
                SETTINGS: found,
                REGISTERED: registered_by_cells(),
                **{f"_{number}": value for number, value in results},
                **names,
            }
            pickled = pickles.Pickler(values, self.namespace)
            paths = self._write(pickled, request.body)
        return Saved(
            str(paths[0].parent),
            [path.name for path in paths],
            sum(path.stat().st_size for path in paths),
            [name for name in pickled.values if name in names],
            {name: why for name, why in pickled.lost.items() if name in names},
            sorted(pickled.spanning & names.keys()),
            {name: why for name, why in self.lost.items() if name not in self.namespace},
            {n.strip(): why for n, why in pickled.lost.items() if n in (SETTINGS, REGISTERED)},
        )

    def _write(self, pickled: pickles.Pickler, body: Save | Checkpoint) -> list[Path]:
        """Write to the first place that has room; returns the files' paths."""
        nbytes, whys = sum(one.nbytes for one in pickled.parts) + pickled.file.tell(), list[str]()
        for place in body.places:
            path = Path(place.folder) / file_name(self.rank)
            if place.room is not None and nbytes > place.room:
                whys.append(f"{place.folder} has room for {place.room >> 20} MiB")
                continue
            try:
                return pickled.write(path, compare=body.compare)
            except (OSError, BadFile) as error:  # or the place was removed: nobody waits for it
                whys.append(str(error))
                file.remove(path)
        raise BadFile(f"{nbytes >> 20} MiB found no room: {'; '.join(whys)}")

    def load(self, request: Request[Load]) -> Made:
        """``load``: make all values, and hold them until ``bind``. On the main thread.

        Raises:
          BadFile: a file was changed.
        """
        body, changed, before = request.body, dict[str, Any](), changeable()
        if not body.files:
            return Made([])
        files = {r: StateFile(Path(folder) / file_name(r)) for r, folder in body.files.items()}
        base, is_part = min(files) if body.own is None else body.own, body.only is not None

        def use(value: dict[str, Any]) -> None:
            """Have the settings for a while, as they change what values become."""
            for name, lines in value["cells"].items():  # for tracebacks, and for classes
                linecache.cache.setdefault(name, (sum(map(len, lines)), None, lines, name))
            if not is_part:
                change(value["changed"])
                changed.update(value)

        classes.kept.set(set() if is_part else None)
        try:
            made, lost = pickles.load(files, base, self.namespace, use)
        finally:
            change(changes(changeable(), before))
        for cls, how in () if is_part else made.get(REGISTERED, ()):
            with contextlib.suppress(Exception):  # JAX refuses it
                register(cls, how)
        wanted = made.keys() if body.only is None else {*body.only}
        if body.own is None:
            wanted = anothers(made, files, base, body.num_processes)
            changed.pop("random", None)
        wanted -= {SETTINGS, REGISTERED}
        names = {name: value for name, value in made.items() if name in wanted}
        self.hold(body.token, names, changed)
        return Made([name for name in names if not RESULT.fullmatch(name)], lost)

    def hold(
        self, token: str, names: dict[str, Any], changed: dict[str, Any] | None = None
    ) -> None:
        """Hold what was read or pushed until ``bind``."""
        self._held[token] = names, changed or {}
        if token in self._dropped:  # meanwhile
            self._held.pop(token, None)

    def bind(self, request: Request[Bind]) -> Made:
        """``bind``: all names that were read and are not lost. On the main thread."""
        lost, namespace = request.body.lost, self.namespace
        found, changed = self._held.pop(request.body.token, ({}, {}))
        names = {name: value for name, value in found.items() if name not in lost}
        for name in lost:
            namespace.pop(name, None)
        namespace.update(names)
        self.lost.update(lost)
        left = self._change(changed) if changed else {}
        results = {int(name[1:]): names.pop(name) for name in [*names] if RESULT.fullmatch(name)}
        if results:
            namespace.setdefault("_oh", {}).update(results)
            last = [value for _, value in sorted(results.items())][:-4:-1]
            namespace.update(zip(("_", "__", "___"), last, strict=False))
        return Made([*names], left)

    def _change(self, found: Mapping[str, Any]) -> dict[str, str]:
        """Have what cells have changed, and let the shell have the cells."""
        if "random" in found:
            random.setstate(found["random"][0])
            with contextlib.suppress(ValueError):  # of another generator
                np.random.set_state(found["random"][1])
        history, self._shell.execution_count = self._shell.history_manager, found["count"]
        history.input_hist_parsed[:], history.input_hist_raw[:] = found["history"]
        sources = enumerate(history.input_hist_parsed)
        self.namespace.update({f"_i{number}": source for number, source in sources if number})
        return change(found["changed"])

    def drop(self, request: Request[Drop]) -> None:
        """``drop``: what was read, or is being read, is not bound."""
        self._dropped.append(request.body.token)
        self._held.pop(request.body.token, None)


# ---------------------------------------------------------------------- what cells change besides


def changeable() -> dict[tuple[str, str], Any]:
    """The values that may change at any time, by kind and name."""
    found: dict[tuple[str, str], Any] = {("environ", n): v for n, v in os.environ.items()}
    found |= {("config", n): v for n, v in jax.config.values.items() if n not in OURS}
    folder = os.readlink("/proc/self/cwd")  # os.getcwd raises where it was removed
    return found | {("path", "sys.path"): sys.path[:], ("folder", "the folder"): folder}


def changes(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[Any, Any]:
    """The changes that turn ``before`` into ``after``; None: a value is not there. Pure."""
    names = {**before, **after}
    return {one: after.get(one) for one in names if before.get(one) != after.get(one)}


def change(found: Mapping[tuple[str, str], Any]) -> dict[str, str]:
    """Make changes; returns what could not be changed: why."""
    left = {}
    for (kind, name), value in found.items():
        try:
            if kind == "config":
                jax.config.update(name, value)
            elif kind == "path":
                sys.path[:] = value
            elif kind == "folder":
                os.chdir(value)
            elif value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        except Exception as error:
            left[name] = str(error)
    return left


# ---------------------------------------------------------------------- for new ranks


def anothers(
    made: Mapping[str, Any], files: Mapping[int, StateFile], base: int, num_processes: int
) -> set[str]:
    """The names of a rank that a new one may have.

    They can't differ between ranks. With another number of ranks they are also those that were
    equal on all, whose files these are.
    """
    about = [file.about for file in files.values()]
    spanning, own = files[base].about["spanning"], files[base].about["digests"]
    equal = {n for n in own if own[n] and all(one["digests"].get(n) == own[n] for one in about)}
    is_resized = len(files) == num_processes != jax.process_count()
    found = {name for name, value in made.items() if _can_be_anothers(value, name in spanning)}
    return found | (equal if is_resized else set())


def _can_be_anothers(value: Any, spans: bool) -> bool:
    """Whether all ranks have the same value.

    All have the same modules, functions and classes without values of their own, meshes and
    shardings. In a value with arrays that span processes, all arrays must span them. Python's
    values beside them count as equal: all ranks give them to the same programs.

    Args:
      spans: it has arrays that spanned processes.
    """
    leaves: list[Any] = []
    with contextlib.suppress(Exception):  # too many, or a user's class that raises
        leaves = [leaf for _, leaf in leaves_of(value)]
    if not spans:
        return not any(map(is_array, leaves)) and _is_common(value)
    others = [one for one in leaves if type(one) not in LITERALS and not is_array(one)]
    here = {one.is_fully_addressable for one in leaves if is_array(one)}  # all, of a single process
    return len(here) == 1 and all(map(_is_common, others))


def _is_common(value: Any, by_library: bool = False, depth: int = DEPTH) -> bool:
    """Whether it is a function, a mesh or the like, and what it holds is common as well.

    Args:
      by_library: a library's function holds it. Options there, as the ``argnums`` of a gradient,
        are no values of the rank's own.
    """
    if isinstance(value, COMMON) or (callable(value) and is_imported(value)):
        return True
    if by_library and type(value) in (*LITERALS, object):
        return True
    held: Any = None
    if isinstance(value, functools.partial):
        by_library = is_imported(value.func)
        held = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, (kinds().jitted, jax.custom_jvp, jax.custom_vjp)):
        held = [getattr(value, "__wrapped__", None)]
    elif isinstance(value, FunctionType):
        by_library = value.__globals__.get("__name__") != "__main__"
        held = [
            one for cell in value.__closure__ or () for one in contents(cell) if one is not None
        ]
        if not _has_literals(value):
            held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    elif isinstance(value, tuple) and (value or by_library):  # an optimizer is one of functions
        held = value
    elif isinstance(value, dict) and by_library:
        held = value.values()
    is_known = held is not None and depth > 0
    return is_known and all(_is_common(one, by_library, depth - 1) for one in held)


def _has_literals(function: FunctionType) -> bool:
    """Whether a function's defaults are those that its source has, on any rank."""
    with contextlib.suppress(OSError, SyntaxError, ValueError, IndexError, AttributeError):
        given: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        for one in filter(None, (*given.args.defaults, *given.args.kw_defaults)):
            ast.literal_eval(one)
        return True
    return False
