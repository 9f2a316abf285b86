"""``jax.config`` options whose setting a cluster has made already."""

from __future__ import annotations

import functools
from typing import Any


def accept_num_cpu_devices(counts: frozenset[int]) -> None:
    """Have ``jax_num_cpu_devices`` set to what the cluster has already be no error.

    JAX refuses any value once there are devices (jax 0.10.2 and 0.12), and single-process programs
    begin with it. All values go through ``Config.update``.

    Args:
      counts: the devices of this process, and of all.
    """
    import jax

    config = type(jax.config)
    original: Any = getattr(config, "update", None)
    if original is None:  # it is refused as before
        return

    @functools.wraps(original)
    def update(self: Any, name: str, val: Any) -> None:
        if name != "jax_num_cpu_devices" or type(val) is not int or val not in counts:
            original(self, name, val)

    config.update = update  # type: ignore[method-assign]
