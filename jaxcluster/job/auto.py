"""Importing this has ``jax.distributed.initialize`` end with ``jaxcluster.agree()``.

For jobs whose scripts stay as they are: a ``.pth`` file or ``sitecustomize`` imports it where
``JAXCLUSTER_AGREE=1`` is set. JAX itself is not imported.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE = "jax._src.distributed"


class Finder:
    """Finds that one module of JAX's, once."""

    def find_spec(self, name: str, *more: Any) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                initialize = vars(module)["initialize"]

                @functools.wraps(initialize)
                def initialize_and_agree(*args: Any, **kwargs: Any) -> None:
                    initialize(*args, **kwargs)
                    from jaxcluster.job.agree import agree

                    agree()

                vars(module)["initialize"] = initialize_and_agree

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if MODULE not in sys.modules:
    sys.meta_path.insert(0, Finder())
