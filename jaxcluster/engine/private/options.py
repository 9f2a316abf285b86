"""Options of ``jax.config`` that modules define when they are imported: which module, which value.

``jax.config`` knows an option by its name alone, so a new process must import the module first.
"""

from __future__ import annotations

import functools
import importlib
import sys
from dataclasses import dataclass
from typing import Any

_defined: dict[str, Option] = {}


@dataclass(frozen=True)
class Option:
    """The value of an option, and the module that defines it."""

    module: str
    value: Any


def note_definitions() -> bool:
    """Have each option that is defined from here on remembered with its module and default.

    All definitions go through ``Config.add_option`` (jax 0.10.2 and 0.12).

    Returns:
      False where the name has moved: a new process then has no such option until its module is
      imported, and what a cell has set it to is named as lost.
    """
    import jax

    config = type(jax.config)
    original: Any = getattr(config, "add_option", None)
    if original is None or hasattr(original, "__wrapped__"):
        return original is not None

    @functools.wraps(original)
    def add_option(self: Any, name: str, holder: Any, *args: Any, **kwargs: Any) -> None:
        original(self, name, holder, *args, **kwargs)
        _defined[name] = Option(_caller(original.__module__), getattr(holder, "value", None))

    config.add_option = add_option  # type: ignore[method-assign]
    return True


def accept_num_cpu_devices(counts: frozenset[int]) -> None:
    """Have ``jax_num_cpu_devices`` set to what the cluster has already be no error.

    JAX refuses any value once there are devices (jax 0.10.2 and 0.12), and single-process programs
    begin with it. All values go through ``Config.update``.

    Args:
      counts: the devices of this process, and of all.
    """
    import jax

    config = type(jax.config)
    original: Any = getattr(config, "update", None)
    if original is None:  # it is refused as before
        return

    @functools.wraps(original)
    def update(self: Any, name: str, val: Any) -> None:
        if name != "jax_num_cpu_devices" or type(val) is not int or val not in counts:
            original(self, name, val)

    config.update = update  # type: ignore[method-assign]


def _caller(of_jax: str) -> str:
    """The module whose code defines an option now."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == of_jax:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def with_modules(values: dict[str, Any]) -> dict[str, Any]:
    """``jax.config``'s values; of options that modules have defined only those that were set."""
    found = {}
    for name, value in values.items():
        option = _defined.get(name)
        if option is None:
            found[name] = value
        elif value != option.value:
            found[name] = Option(option.module, value)
    return found


def update(name: str, value: Any) -> None:
    """Set an option to what ``with_modules`` has found.

    Raises:
      Exception: why it can't be, also what importing its module raises.
    """
    import jax

    if isinstance(value, Option):
        if name not in jax.config.values:
            importlib.import_module(value.module)
        value = value.value
    jax.config.update(name, value)
