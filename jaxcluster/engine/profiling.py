"""A rank's cell under JAX's own profiler."""

from __future__ import annotations

import os
import time

from jaxcluster import wire


def begin(cell: wire.CellRequest, rank: int) -> None:
    """Start JAX's profiler, with a folder of this rank's own: JAX names files by the host.

    Raises:
      OSError: the folder can't be made.
      RuntimeError: this process is being profiled already.
    """
    import jax

    folder = os.path.join(cell.profile, f"rank-{rank}")
    os.makedirs(folder, exist_ok=True)
    options = jax.profiler.ProfileOptions()
    # JAX's own name is the second: of two profiles in one second the first would be lost.
    when = time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(cell.sent_ns / 1e9))
    options.session_id = f"cell-{cell.execution_count}-{when}"
    # Of each Python call there would be an event, and Python 2 to 3 times as slow: what is slow
    # in a step would be another thing.
    options.python_tracer_level = 0
    jax.profiler.start_trace(folder, create_perfetto_trace=True, profiler_options=options)


def end() -> None:
    """Stop it, and write its files."""
    import jax

    try:
        jax.profiler.stop_trace()
    except RuntimeError as error:
        if str(error) != "No profile started":  # then the cell has stopped it itself
            raise
