"""Every private name of JAX that jaxcluster uses, each with what to do where it has moved."""

import functools
from collections.abc import Callable
from typing import Any

moved: dict[str, str] = {}  # what it costs that names have moved, by what they are for


def needs_names(what: str, cost: str) -> Callable[[Callable[..., None]], Callable[..., bool]]:
    """For a function that looks up JAX's private names, and then changes JAX by them.

    It returns whether they are there. If one has moved, JAX stays as it is, and ``moved`` has the
    cost.
    """

    def decorate(change: Callable[..., None]) -> Callable[..., bool]:
        @functools.wraps(change)
        def try_it(*args: Any) -> bool:
            try:
                change(*args)
            except (ImportError, AttributeError, TypeError):
                moved[what] = cost
                return False
            return True

        return try_it

    return decorate
