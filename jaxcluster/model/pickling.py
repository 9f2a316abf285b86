"""How the notebook and ranks pickle values for each other: open files, and objects of jax."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any


def refuse_file(file: Any) -> tuple[Any, ...]:
    """Reduce an open file: cloudpickle would send its text, as a ``StringIO``.

    Raises:
      TypeError: it is neither of the streams that each process has.
    """
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    which = getattr(file, "name", file)  # one over a buffer has none
    raise TypeError(f"{which!r} is an open file. Use its path or its text, file.read()")


FILES = dict.fromkeys(
    (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO),
    refuse_file,
)


class OfJax:
    """A module, function or class of jax's, in a process that does not import jax.

    Classes of cells mention them, in annotations and in methods, and can be used without them.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __reduce__(self) -> Any:
        return of_jax, (self._module, self._name)

    def __repr__(self) -> str:
        return ".".join(filter(None, [self._module, self._name]))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return OfJax(self._module, f"{self._name}.{name}".lstrip("."))

    def __or__(self, other: Any) -> OfJax:
        return self

    __ror__ = __or__

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Fail: only jax can do this.

        Raises:
          ImportError: always.
        """
        raise ImportError(f"{self} is not here: run it on the ranks, in a %%spmd cell")


def of_jax(module: str, name: str) -> Any:
    """A module of jax's, or what has this name there."""
    if "jax" not in sys.modules:
        return OfJax(module, name)
    found = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found


def reference_to(cls: type) -> Any:
    """How ``jax.Array`` is pickled, whose own name is another one; None for other classes."""
    _, dot, name = cls.__name__.rpartition(".")
    if dot and getattr(sys.modules.get(cls.__module__), name, None) is cls:
        return of_jax, (cls.__module__, name)
    return None
