"""MLIR's Python modules, without the import of all of ``jax.extend``."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def modules() -> tuple[Any, Any]:
    """``jax.extend.mlir``'s ``ir`` and ``passmanager``, from where it has them.

    jax has imported these two itself (jax 0.10.2 and 0.12). ``jax.extend`` imports much more, which
    takes 0.1 s at the first call of a process's first program.
    """
    try:
        from jaxlib.mlir import ir, passmanager
    except ImportError:  # they have moved
        within = "jax.extend.mlir"
        return import_module(f"{within}.ir"), import_module(f"{within}.passmanager")
    return ir, passmanager
