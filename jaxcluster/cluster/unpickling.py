"""Values of the ranks' as Python objects, in a process that must not import jax."""

from __future__ import annotations

import importlib
import importlib.abc
import pickle
import sys
from collections.abc import Sequence
from typing import Any

from jaxcluster.errors import (
    NotSerialisable,
)
from jaxcluster.wire.ops.values import OfJax, of_jax


class NeedsJax(Exception):
    """Unpickling wanted to import a module of jax (its name), which the notebook must not."""


class _NoJax(importlib.abc.MetaPathFinder):
    """Refuses jax while a value is unpickled (law 1)."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if _is_jaxs(fullname):
            raise NeedsJax(fullname)


def _is_jaxs(module: str) -> bool:
    return module.partition(".")[0] in ("jax", "jaxlib")


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arrays: Sequence[Any], buffers: Sequence[Any]) -> None:
        import io

        super().__init__(io.BytesIO(data), buffers=buffers)
        self._arrays = arrays
        self.of_jax: list[Any] = []

    def persistent_load(self, pid: Any) -> Any:
        return self._arrays[pid]

    def find_class(self, module: str, name: str) -> Any:
        if _is_jaxs(module) and "jax" not in sys.modules:
            self.of_jax.append(found := OfJax(module, name))
            return found
        if name == "of_jax":
            return self._of_jax
        if name == "subimport" and module.startswith("cloudpickle"):
            return self._module
        return super().find_class(module, name)

    def _module(self, name: str) -> Any:
        return self._of_jax(name, "") if _is_jaxs(name) else importlib.import_module(name)

    def _of_jax(self, module: str, name: str) -> Any:
        self.of_jax.append(found := of_jax(module, name))
        return found


def load(data: bytes, arrays: Sequence[Any], buffers: Sequence[Any]) -> Any:
    """The value that a rank has pickled; its arrays are given already joined.

    Raises:
      NeedsJax: it has something of jax's own.
      NotSerialisable: a module or an attribute that it needs is not here.
    """
    guard = None if "jax" in sys.modules else _NoJax()
    if guard is not None:
        sys.meta_path.insert(0, guard)
    unpickler = _Unpickler(data, arrays, buffers)
    try:
        value = unpickler.load()
        if isinstance(value, OfJax):
            raise NeedsJax(str(value))
        return value
    except NeedsJax:
        raise
    except Exception as error:
        if unpickler.of_jax:  # it was called, or is the class of an object
            raise NeedsJax(str(unpickler.of_jax[0])) from None
        _explain(error)
        raise
    finally:
        if guard is not None:
            sys.meta_path.remove(guard)


def _explain(error: Exception) -> None:
    """Say what is not here.

    Raises:
      NotSerialisable: a module or an attribute.
    """
    if isinstance(error, ModuleNotFoundError):
        raise NotSerialisable(
            f"The value needs a module that this notebook does not have: {error.name}.",
            "Install it here too, or pull a plain dict, list or array instead.",
        ) from None
    if isinstance(error, AttributeError | ImportError):
        raise NotSerialisable(
            f"The value can't be rebuilt in this notebook: {error}.",
            "Pull a plain dict, list or array instead.",
        ) from None
