"""Every private name of JAX that jaxcluster uses, each with what to do where it has moved.

``self_test`` names those that are missing and what that costs.
"""

from collections.abc import Callable


def is_there(look: Callable[[], bool]) -> bool:
    """What ``look`` returns, which says whether names are where they are expected."""
    try:
        return look()
    except (ImportError, AttributeError, TypeError):
        return False
