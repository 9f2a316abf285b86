"""Every private name of JAX that jaxcluster uses, each with what to do where it has moved.

``self_test`` names those that are missing; ``%jaxcluster doctor`` and a unit test show them.
"""

from __future__ import annotations

import functools
from typing import Any

_gloo_original: Any = None


def set_collectives_address(address: str) -> bool:
    """Make CPU collectives (gloo) listen on ``address`` instead of what the hostname resolves to.

    Debian's ``127.0.1.1 host`` line ends in "Connection refused" and an unresolvable name in
    "enforce fail at device.cc:99". Must come before the backend starts. JAX has no public setting
    for it (jax 0.10.2 and 0.12: ``xla_bridge.make_cpu_client`` calls
    ``_jax.make_gloo_tcp_collectives`` without a hostname).

    Returns:
      False where the private name has moved: gloo then uses the hostname, as in plain JAX.
    """
    global _gloo_original
    try:
        from jax._src.lib import _jax

        if _gloo_original is None:
            _gloo_original = _jax.make_gloo_tcp_collectives
        _jax.make_gloo_tcp_collectives = functools.partial(_gloo_original, hostname=address)
    except (ImportError, AttributeError):
        return False
    return True


def self_test() -> dict[str, bool]:
    """Which private names are where this module expects them. Starts no backend."""
    found = {}
    try:
        from jax._src import xla_bridge
        from jax._src.lib import _jax

        found["gloo address"] = (
            hasattr(_jax, "make_gloo_tcp_collectives")
            and getattr(xla_bridge, "_jax", None) is _jax
        )
    except ImportError:
        found["gloo address"] = False
    return found
