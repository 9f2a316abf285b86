"""What cells have changed in the process, beside their names: saved with them, and set again.

These are options of ``jax.config``, environment variables, the folder, ``sys.path``, the states of
``random`` and ``numpy.random``, what cells have registered as pytrees, the cells themselves.
"""

from __future__ import annotations

import linecache
import os
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxcluster.engine.private.pytrees import register, registered_by_cells

Undo = Callable[[], None]
NOT_OURS = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name")


class Settings:
    """Those of one rank, and what they were before its first cell.

    Attributes:
      cell_numbers: of the cells' files.
    """

    def __init__(self, cell_numbers: dict[str, int]) -> None:
        self.cell_numbers = cell_numbers
        self._shell: Any = None
        self._before: dict[str, Any] = {"environ": {}, "folder": "", "path": [], "config": {}}

    def attach(self, shell: Any) -> None:
        """Cells run in this shell from now on."""
        self._shell, self._before = shell, _now()

    def changed(self) -> dict[str, Any]:
        """What differs from what it was, as pickles can have it."""
        now, before = _now(), self._before
        found: dict[str, Any] = {
            name: _differences(before[name], now[name])
            for name in ("environ", "config")
            if now[name] != before[name]
        }
        found |= {n: now[n] for n in ("folder", "path") if now[n] != before[n]}
        found["random"] = random.getstate(), np.random.get_state()
        if self._shell is not None:
            history = self._shell.history_manager
            found["cells"] = self._shell.execution_count, history.input_hist_parsed[:]
            found["raw"] = history.input_hist_raw[:]
        sources = {
            name: (number, linecache.getlines(name))
            for name, number in self.cell_numbers.items()
            if len(linecache.getlines(name))
        }
        return {**found, "sources": sources}

    def results(self) -> dict[str, Any]:
        """``Out``: what cells have ended in."""
        names = self._shell.user_ns if self._shell is not None else {}
        return {f"Out {number}": value for number, value in dict(names.get("_oh", {})).items()}

    def registered(self) -> Any:
        """The imported classes that cells have registered as pytrees."""
        return list(registered_by_cells().values())

    def apply(self, found: Mapping[str, Any], *, own: bool) -> tuple[Undo, dict[str, str]]:
        """Set what was saved; returns what undoes it, and what could not be set: why.

        Args:
          own: it was this rank's, with its random states.
        """
        import jax

        before, left = _now(), {}
        config = {n: v for n, v in found.get("config", {}).items() if n not in NOT_OURS}
        for name, value in config.items():
            try:
                jax.config.update(name, value)
            except Exception as error:
                left[name] = str(error)
        for name, value in found.get("environ", {}).items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        sys.path[:] = found.get("path", sys.path)
        if "folder" in found:
            try:
                os.chdir(found["folder"])
            except OSError as error:
                left["the folder"] = str(error)
        states = random.getstate(), np.random.get_state()
        if own and "random" in found:
            random.setstate(found["random"][0])
            np.random.set_state(found["random"][1])

        def undo() -> None:
            for name in config:
                jax.config.update(name, before["config"].get(name))
            os.environ.clear()
            os.environ.update(before["environ"])
            sys.path[:] = before["path"]
            os.chdir(before["folder"])
            random.setstate(states[0])
            np.random.set_state(states[1])

        for name, (number, lines) in found.get("sources", {}).items():
            self.cell_numbers.setdefault(name, number)
            text = "".join(lines)
            linecache.cache.setdefault(name, (len(text), None, lines, name))
        return undo, left

    def show(self, found: Mapping[str, Any], results: Mapping[str, Any]) -> None:
        """Let the shell have the cells and what they have ended in."""
        if self._shell is None:
            return
        history, names = self._shell.history_manager, self._shell.user_ns
        if "cells" in found:
            count, parsed = found["cells"]
            history.input_hist_parsed[:], history.input_hist_raw[:] = parsed, found["raw"]
            self._shell.execution_count = count
            names |= {f"_i{number}": source for number, source in enumerate(parsed) if number}
        for name, value in results.items():
            number = int(name.removeprefix("Out "))
            names["_oh"][number] = names[f"_{number}"] = value
        last = [value for _, value in sorted(names["_oh"].items())][:-4:-1]
        names |= dict(zip(("_", "__", "___"), last, strict=False))


def register_again(found: Any) -> None:
    """Register what ``registered`` found."""
    for cls, how in found:
        register(cls, how)


def _now() -> dict[str, Any]:
    import jax

    return {
        "environ": dict(os.environ),
        "config": dict(jax.config.values),
        "path": list(sys.path),
        "folder": os.getcwd(),
    }


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    names = {n for n in {*before, *now} if before.get(n) != now.get(n)}
    return {name: now.get(name) for name in sorted(names)}
