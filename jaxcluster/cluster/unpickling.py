"""Values of the ranks' as Python objects, in a process that must not import jax."""

from __future__ import annotations

import importlib.abc
import pickle
import sys
from collections.abc import Sequence
from typing import Any

from jaxcluster.errors import (
    NotSerialisable,
)


class NeedsJax(Exception):
    """Unpickling wanted to import a module of jax (its name), which the notebook must not."""


class _NoJax(importlib.abc.MetaPathFinder):
    """Refuses jax while a value is unpickled (law 1)."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.partition(".")[0] in ("jax", "jaxlib"):
            raise NeedsJax(fullname)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arrays: Sequence[Any], buffers: Sequence[Any]) -> None:
        import io

        super().__init__(io.BytesIO(data), buffers=buffers)
        self._arrays = arrays

    def persistent_load(self, pid: Any) -> Any:
        return self._arrays[pid]


def load(data: bytes, arrays: Sequence[Any], buffers: Sequence[Any]) -> Any:
    """The value that a rank has pickled; its arrays are given already joined.

    Raises:
      NeedsJax: it has something of jax's own.
      NotSerialisable: a module or an attribute that it needs is not here.
    """
    guard = None if "jax" in sys.modules else _NoJax()
    if guard is not None:
        sys.meta_path.insert(0, guard)
    try:
        return _Unpickler(data, arrays, buffers).load()
    except (NeedsJax, ModuleNotFoundError) as error:
        if isinstance(error, NeedsJax):
            raise
        raise NotSerialisable(
            f"The value needs a module that this notebook does not have: {error.name}.",
            "Install it here too, or pull a plain dict, list or array instead.",
        ) from None
    except (AttributeError, ImportError) as error:
        raise NotSerialisable(
            f"The value can't be rebuilt in this notebook: {error}.",
            "Pull a plain dict, list or array instead.",
        ) from None
    finally:
        if guard is not None:
            sys.meta_path.remove(guard)
