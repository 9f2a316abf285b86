"""What cells have changed in the process, beside their names: saved with them, and set again.

These are options of ``jax.config``, environment variables, the folder, ``sys.path``, the states of
``random`` and ``numpy.random``, what cells have registered as pytrees, and the cells themselves.
"""

from __future__ import annotations

import linecache
import os
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxcluster.engine.private.pytrees import registered_by_cells

OURS = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name")  # options of the start
OUT = "Out "
_NUMPYS: Any = np.random  # numpy's types lack what chooses its generator


class Settings:
    """Those of one rank, and what they were before its first cell.

    Attributes:
      cell_numbers: of the cells' files.
    """

    def __init__(self, cell_numbers: dict[str, int]) -> None:
        self.cell_numbers = cell_numbers
        self._shell: Any = None
        self._before: Mapping[str, Any] | None = None

    def attach(self, shell: Any) -> None:
        """Cells run in this shell from now on."""
        self._shell, self._before = shell, now()

    def changed(self) -> dict[str, Any]:
        """What differs from what it was, as pickles can have it."""
        found = changes(self._before, now()) if self._before is not None else {}
        generator, state = _NUMPYS.get_bit_generator(), np.random.get_state(legacy=False)
        found["random"] = random.getstate(), generator, state
        if self._shell is not None:
            history = self._shell.history_manager
            past = history.input_hist_parsed[:], history.input_hist_raw[:]
            found["history"] = self._shell.execution_count, *past
        sources = {name: linecache.getlines(name) for name in self.cell_numbers}
        found["cells"] = {name: (self.cell_numbers[name], sources[name]) for name in sources}
        return found

    def results(self) -> dict[str, Any]:
        """``Out``: what cells have ended in."""
        names = self._shell.user_ns if self._shell is not None else {}
        return {f"{OUT}{number}": value for number, value in dict(names.get("_oh", {})).items()}

    def registered(self) -> Any:
        """The imported classes that cells have registered as pytrees, and how."""
        return list(registered_by_cells().values())

    def show(self, found: Mapping[str, Any], results: Mapping[str, Any]) -> None:
        """Let the shell have the cells and what they have ended in."""
        for name, (number, _) in found.get("cells", {}).items():
            self.cell_numbers.setdefault(name, number)
        if "random" in found:
            pythons, generator, state = found["random"]
            random.setstate(pythons)
            if type(generator) is not type(_NUMPYS.get_bit_generator()):
                _NUMPYS.set_bit_generator(generator)
            np.random.set_state(state)
        if self._shell is None:
            return
        history, names = self._shell.history_manager, self._shell.user_ns
        if "history" in found:
            self._shell.execution_count, parsed, raw = found["history"]
            history.input_hist_parsed[:], history.input_hist_raw[:] = parsed, raw
            names |= {f"_i{number}": source for number, source in enumerate(parsed) if number}
        for name, value in results.items():
            number = int(name.removeprefix(OUT))
            names["_oh"][number] = names[f"_{number}"] = value
        last = [value for _, value in sorted(names["_oh"].items())][:-4:-1]
        names |= dict(zip(("_", "__", "___"), last, strict=False))


def show_sources(found: Mapping[str, Any]) -> None:
    """Let tracebacks, and class statements that run again, have the sources of cells."""
    for name, (_, lines) in found.get("cells", {}).items():
        linecache.cache.setdefault(name, (sum(map(len, lines)), None, lines, name))


def now() -> dict[str, Any]:
    """What the settings are."""
    import jax

    config = {name: value for name, value in jax.config.values.items() if name not in OURS}
    here = {"environ": dict(os.environ), "config": config}
    return {**here, "path": sys.path[:], "folder": os.getcwd()}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What makes of the ones the others; None in place of a value: it is not there. Pure."""
    found = {name: after[name] for name in ("path", "folder") if after[name] != before[name]}
    for name in ("environ", "config"):
        one, other = before[name], after[name]
        found[name] = {n: other.get(n) for n in {*one, *other} if one.get(n) != other.get(n)}
    return found


def apply(found: Mapping[str, Any]) -> dict[str, str]:
    """Make changes; returns what could not be changed: why."""
    import jax

    left = {}
    for name, value in found.get("config", {}).items():
        try:
            jax.config.update(name, value)
        except Exception as error:
            left[name] = str(error)
    for name, value in found.get("environ", {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    sys.path[:] = found.get("path", sys.path)
    try:
        os.chdir(found.get("folder", "."))
    except OSError as error:
        left["the folder"] = str(error)
    return left
