"""What cells have changed in the process, beside their names: saved with them, and set again.

These are options of ``jax.config``, environment variables, the folder, ``sys.path``, the states of
``random`` and ``numpy.random``, what cells have registered as pytrees, and the cells themselves.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxcluster.engine.private.pytrees import registered_by_cells

OURS = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name")  # options of the start
# Sections that are no names. The first one comes first, as it changes what values become.
SETTINGS, REGISTERED, OUT = " settings", " registered", "Out "


class Settings:
    """Those of one rank, and what they were before its first cell.

    Attributes:
      cell_numbers: of the cells' files.
    """

    def __init__(self, cell_numbers: dict[str, int]) -> None:
        self.cell_numbers = cell_numbers
        self._shell: Any = None
        self._before: Mapping[tuple[str, str], Any] = {}

    def attach(self, shell: Any) -> None:
        """Cells run in this shell from now on."""
        self._shell, self._before = shell, now()

    def sections(self) -> dict[str, Any]:
        """What differs from what it was, what cells have registered and what they have ended in."""
        found: dict[str, Any] = {"changed": changes(self._before or now(), now())}
        found["random"] = random.getstate(), np.random.get_state(legacy=False)
        found["cells"] = {f: (n, linecache.getlines(f)) for f, n in self.cell_numbers.items()}
        made = {SETTINGS: found, REGISTERED: list(registered_by_cells().values())}
        if self._shell is None:
            return made
        history, names = self._shell.history_manager, self._shell.user_ns
        past = history.input_hist_parsed[:], history.input_hist_raw[:]
        found["history"] = self._shell.execution_count, *past
        results = dict(names.get("_oh", {}))
        return made | {f"{OUT}{number}": value for number, value in results.items()}

    def show(self, found: Mapping[str, Any]) -> None:
        """Let the shell have the cells and what they have ended in, by the sections."""
        settings = found.get(SETTINGS, {})
        if "random" in settings:
            pythons, numpys = settings["random"]
            random.setstate(pythons)
            with contextlib.suppress(ValueError):  # of another generator
                np.random.set_state(numpys)
        if self._shell is None:
            return
        history, names = self._shell.history_manager, self._shell.user_ns
        if "history" in settings:
            self.cell_numbers |= {f: number for f, (number, _) in settings["cells"].items()}
            self._shell.execution_count, parsed, raw = settings["history"]
            history.input_hist_parsed[:], history.input_hist_raw[:] = parsed, raw
            names |= {f"_i{number}": source for number, source in enumerate(parsed) if number}
        results = {int(n.removeprefix(OUT)): v for n, v in found.items() if n.startswith(OUT)}
        names["_oh"] |= results
        names |= {f"_{number}": value for number, value in results.items()}
        last = [value for _, value in sorted(results.items())][:-4:-1]
        names |= dict(zip(("_", "__", "___"), last, strict=False))


def know_cells(cells: Mapping[str, tuple[int, list[str]]]) -> None:
    """Let tracebacks, and classes that are saved again, have the cells' sources."""
    for name, (_, lines) in cells.items():
        linecache.cache.setdefault(name, (sum(map(len, lines)), None, lines, name))


def now() -> dict[tuple[str, str], Any]:
    """What the settings are, by their kinds and names."""
    import jax

    found: dict[tuple[str, str], Any] = {("environ", n): v for n, v in os.environ.items()}
    found |= {("config", n): v for n, v in jax.config.values.items() if n not in OURS}
    folder = os.readlink("/proc/self/cwd")  # os.getcwd raises where it was removed
    return found | {("path", "sys.path"): sys.path[:], ("folder", "the folder"): folder}


def changes(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[Any, Any]:
    """What makes of the ones the others; None in place of a value: it is not there. Pure."""
    names = {**before, **after}
    return {one: after.get(one) for one in names if before.get(one) != after.get(one)}


def apply(found: Mapping[tuple[str, str], Any]) -> dict[str, str]:
    """Make changes; returns what could not be changed: why."""
    import jax

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


def undo(before: Mapping[Any, Any]) -> None:
    """Have the settings that there were before."""
    apply(changes(now(), before))
