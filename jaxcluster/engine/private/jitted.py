"""jitted functions: what they were made of, and others that are made of it."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def jitted_type() -> type:
    """The type of jitted functions."""
    import jax

    return type(jax.jit(len))


def info_of(function: Any) -> Any:
    """The options of a jitted function.

    JAX has no public way to ask (jax 0.10.2 and 0.12: ``_jit_info``, a ``PjitInfo``).

    Raises:
      AttributeError: the name has moved.
    """
    return function._jit_info


def jitted(function: Any, info: Any) -> Any:
    """A function, jitted with the options that another one had."""
    from jax._src import pjit
    from jax._src.sharding_impls import UNSPECIFIED

    def leaves(name: str) -> tuple[Any, ...]:
        kind = type(UNSPECIFIED)
        return tuple(UNSPECIFIED if type(one) is kind else one for one in getattr(info, name))

    known = {name: leaves(name) for name in ("in_shardings_leaves", "out_shardings_leaves")}
    return pjit._cpp_pjit(function, info._replace(**known))  # type: ignore[no-untyped-call]


def can_make() -> bool:
    """Whether the names are there, by which jitted functions are saved and made again."""
    import jax
    from jax._src import pjit

    return hasattr(pjit, "_cpp_pjit") and hasattr(jax.jit(len), "_jit_info")
