"""Every private name of JAX that jaxcluster uses, each with what to do where it has moved.

``self_test`` names those that are missing and what that costs.
"""

import pkgutil
from collections.abc import Callable


def is_there(look: str | Callable[[], bool]) -> bool:
    """Whether names are where they are expected.

    Args:
      look: says so; or the names themselves, below ``jax._src``: ``"lib:_jax.Device pjit"``.
    """
    try:
        if not isinstance(look, str):
            return look()
        for name in look.split():
            pkgutil.resolve_name(f"jax._src.{name}")
    except (ImportError, AttributeError, TypeError):
        return False
    return True
