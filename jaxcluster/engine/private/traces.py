"""What JAX has traced since a moment, and how it is made to trace that again.

A traced function keeps the numbers that it met: where a cell that sets ``lr = 100`` calls ``step``
for the first time, ``step`` computes with 100 from then on, whatever ``lr`` is. All tracing of a
user's functions goes through one cache, by function: of ``jax.jit``, also inside of another, of the
bodies of ``scan``, ``while_loop`` and ``cond``, of ``checkpoint``, and of what other libraries make
of these (jax 0.10.2 and 0.12: ``partial_eval.trace_to_jaxpr``, a cache with weak references to the
functions, as ``PjitFunction.clear_cache`` uses it).
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from jaxcluster.engine.private.launches import forget_fast_paths


class Traces:
    """The traces that there were at a moment."""

    def __init__(self) -> None:
        self._misses: Any = None
        self._counts: dict[int, tuple[Any, int]] | None = {}

    def note(self) -> None:
        """The moment is now: 1 us, and 2 us for each trace where there are others than before."""
        try:
            misses = _cache().cache_info().misses
            if misses != self._misses:
                self._misses, self._counts = misses, _counts()
        except (ImportError, AttributeError, TypeError):
            self._counts = None

    def forget_later_ones(self) -> bool:
        """Have JAX trace again what it has traced since; returns whether there was any.

        On any thread. Programs stay compiled, unless they are of such a function. Where the names
        have moved all of JAX's caches are cleared, and all is traced and compiled again.
        """
        try:
            if self._counts is not None and _cache().cache_info().misses == self._misses:
                return False
            before, now = self._counts, _counts()
            if before is not None:
                changed = [
                    function()
                    for key, (function, count) in now.items()
                    if before.get(key, (None, 0))[1] != count
                ]
                _forget([one for one in changed if one is not None])
                return True
        except (ImportError, AttributeError, TypeError):
            pass
        import jax

        jax.clear_caches()
        return True


def _cache() -> Any:
    from jax._src.interpreters import partial_eval

    return partial_eval.trace_to_jaxpr


def _counts() -> dict[int, tuple[Any, int]]:
    """How many traces there are of each function, by the id of the cache's reference to it.

    Raises:
      TypeError: the cache's keys are others than they are known to be.
    """
    found: dict[int, tuple[Any, int]] = {}
    for key in _cache().cache_keys():
        function = key[0]
        if not isinstance(function, weakref.ReferenceType):
            raise TypeError
        found[id(function)] = function, found.get(id(function), (None, 0))[1] + 1
    return found


def _forget(functions: list[Any]) -> None:
    from jax._src import pjit, util

    first = _cache()
    for function in functions:
        first.evict_weakref(function)
    # checkpoint, custom derivatives and others keep what came of it, by the same functions.
    for cache, name in list(util._caches.items()):
        evict = getattr(cache, "evict_weakref", None) or getattr(cache, "evict_function", None)
        if evict is not None:
            for function in functions:
                with contextlib.suppress(TypeError):  # it keeps modules, which no function equals
                    evict(function)
        elif "jaxpr" in name:  # of lax.reduce
            cache.cache_clear()
    pjit._infer_params_cached.cache_clear()
    forget_fast_paths()
