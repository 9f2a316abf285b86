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
SETTINGS, REGISTERED, OUT = " settings", " registered", "Out "  # sections that are no names
_NUMPYS: Any = np.random  # numpy's types lack what chooses its generator


class Settings:
    """Those of one rank, and what they were before its first cell.

    Attributes:
      cell_numbers: of the cells' files.
    """

    def __init__(self, cell_numbers: dict[str, int]) -> None:
        self.cell_numbers = cell_numbers
        self._shell: Any = None
        self._before: Mapping[str, Any] = {}

    def attach(self, shell: Any) -> None:
        """Cells run in this shell from now on."""
        self._shell, self._before = shell, now()

    def sections(self) -> dict[str, Any]:
        """What differs from what it was, what cells have registered and what they have ended in."""
        found = changes(self._before or now(), now())
        generator, state = _NUMPYS.get_bit_generator(), np.random.get_state(legacy=False)
        found["random"] = random.getstate(), generator, state
        found["cells"] = {f: (n, linecache.getlines(f)) for f, n in self.cell_numbers.items()}
        made = {SETTINGS: found, REGISTERED: list(registered_by_cells().values())}
        if self._shell is None:
            return made
        history, names = self._shell.history_manager, self._shell.user_ns
        past = history.input_hist_parsed[:], history.input_hist_raw[:]
        found["history"] = self._shell.execution_count, *past
        return made | {
            f"{OUT}{number}": value for number, value in dict(names.get("_oh", {})).items()
        }

    def show(self, found: Mapping[str, Any], results: Mapping[str, Any]) -> None:
        """Let the shell have the cells and what they have ended in."""
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
            self.cell_numbers |= {file: number for file, (number, _) in found["cells"].items()}
            self._shell.execution_count, parsed, raw = found["history"]
            history.input_hist_parsed[:], history.input_hist_raw[:] = parsed, raw
            names |= {f"_i{number}": source for number, source in enumerate(parsed) if number}
        names["_oh"] |= {int(name.removeprefix(OUT)): value for name, value in results.items()}
        names |= {f"_{number}": value for number, value in names["_oh"].items()}
        last = [value for _, value in sorted(names["_oh"].items())][:-4:-1]
        names |= dict(zip(("_", "__", "___"), last, strict=False))


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
    """Make changes, and let tracebacks have the cells; returns what could not be changed: why."""
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
    for name, (_, lines) in found.get("cells", {}).items():
        linecache.cache.setdefault(name, (sum(map(len, lines)), None, lines, name))
    return left
