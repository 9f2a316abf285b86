"""Importing this has ``jax.distributed.initialize`` end with ``jaxcluster.agree()``.

For jobs whose scripts stay as they are: a ``.pth`` file or ``sitecustomize`` imports it where
``JAXCLUSTER_AGREE=1`` is set. JAX itself is not imported.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE = "jax._src.distributed"


class Finder:
    """Finds that one module of JAX's, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                module.initialize = agreeing(module.initialize)  # type: ignore[attr-defined]

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def agreeing(initialize: Any) -> Any:
    """JAX's function, with the agreement begun behind it."""

    @functools.wraps(initialize)
    def initialize_and_agree(*args: Any, **kwargs: Any) -> None:
        initialize(*args, **kwargs)
        from jaxcluster.engine.job import agree

        agree()

    return initialize_and_agree


if MODULE not in sys.modules:
    sys.meta_path.insert(0, Finder())
