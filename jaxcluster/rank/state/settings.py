"""What cells have changed in the process, beside their names: saved with them, and set again.

These are options of ``jax.config``, environment variables, the folder, ``sys.path``, the states of
``random`` and ``numpy.random``, and the cells themselves.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import random
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

OURS = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name")  # options of the start


def now() -> dict[tuple[str, str], Any]:
    """What can be changed at any time, by its kind and name."""
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


def of_cells(shell: Any, cell_numbers: Mapping[str, int]) -> dict[str, Any]:
    """The states of ``random``, and the cells that have run, with the numbers of their files."""
    history = shell.history_manager
    return {
        "random": (random.getstate(), np.random.get_state(legacy=False)),
        "cells": {file: (n, linecache.getlines(file)) for file, n in cell_numbers.items()},
        "history": (history.input_hist_parsed[:], history.input_hist_raw[:]),
        "count": shell.execution_count,
    }


def know_cells(cells: Mapping[str, tuple[int, list[str]]]) -> None:
    """Let tracebacks, and classes that are saved again, have the cells' sources."""
    for name, (_, lines) in cells.items():
        linecache.cache.setdefault(name, (sum(map(len, lines)), None, lines, name))


def show(found: Mapping[str, Any], shell: Any, cell_numbers: dict[str, int]) -> None:
    """Have the states of ``random``, and let the shell have the cells."""
    if "random" in found:
        random.setstate(found["random"][0])
        with contextlib.suppress(ValueError):  # of another generator
            np.random.set_state(found["random"][1])
    cell_numbers |= {file: number for file, (number, _) in found["cells"].items()}
    history, shell.execution_count = shell.history_manager, found["count"]
    history.input_hist_parsed[:], history.input_hist_raw[:] = found["history"]
    sources = enumerate(history.input_hist_parsed)
    shell.user_ns.update({f"_i{number}": source for number, source in sources if number})
