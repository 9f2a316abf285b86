"""Multi-process JAX in a notebook: start a cluster, run cells on all ranks in lockstep.

    %load_ext jaxcluster
    %jaxcluster start -n 4

    %%spmd
    import jax
    print(jax.process_index(), jax.device_count())

In Python: ``with jaxcluster.start(num_processes=4) as cluster: cluster.run("...")``.

This package never imports jax in the notebook's process, which would seize its GPU or TPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster, RunningCell, attach, current, start
    from jaxcluster.errors import JaxClusterError

T = TypeVar("T")

__all__ = [
    "Cluster",
    "JaxClusterError",
    "RunningCell",
    "__version__",
    "attach",
    "current",
    "load_ipython_extension",
    "log",
    "place",
    "seed",
    "start",
    "steps",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    """Import the cluster's machinery when it is first asked for: a rank needs none of it."""
    if name in ("RunningCell", "Cluster", "attach", "current", "start"):
        from jaxcluster import cluster

        return getattr(cluster, name)
    if name == "JaxClusterError":
        from jaxcluster.errors import JaxClusterError

        return JaxClusterError
    raise AttributeError(f"module 'jaxcluster' has no attribute {name!r}")


def seed(number: int) -> None:
    """Seed ``random`` and ``np.random``: in a cell, so that all ranks draw the same numbers.

    As in scripts each process has a seed of its own, so what a cell draws differs from rank to
    rank; where that becomes data which all ranks should have alike, each computes with its own.
    JAX's keys (``jax.random.key(0)``) are equal on all ranks anyway, as is
    ``np.random.default_rng(0)``. For another seed on each rank add ``jax.process_index()``.
    """
    import random

    import numpy as np

    random.seed(number)
    np.random.seed(number)


def place(value: Any, sharding: Any) -> Any:
    """``value`` with its arrays on the devices of ``sharding``: in a cell, on all ranks.

    Arrays that wait to be placed since the cluster has got another number of ranks (``%jaxcluster
    resize``) are made there, each rank's part by itself. Any others go by ``jax.device_put``.

    Args:
      value: an array, or a pytree of arrays.
      sharding: one for all of them, or a pytree of them like ``value``.

    Raises:
      UsageError: it is not called in a cell.
      ValueError: a shape can't be sharded so.
    """
    from jaxcluster.engine.state import unplaced

    return unplaced.place(value, sharding)


def steps(
    iterable: Iterable[T], *, keep: int | str | None = None, state: Any = None
) -> Iterable[T]:
    """The items of ``iterable``, in a loop of a cell that may take long::

        for step, batch in jaxcluster.steps(enumerate(data), keep="60s"):
            params, opt_state, loss = train_step(params, opt_state, batch)

    Under the cell stands how far it is. With ``keep`` the variables that the loop names are kept
    now and then, after the same iteration on all ranks, in the cluster's folder: they outlive the
    ranks' processes. When a rank has died, or the cell was stopped or failed, run it again: it
    goes on after that iteration. What the loop has changed is put back then, also the states of
    ``random`` and ``np.random``; the items before it are passed over. An edited cell begins at 0.

    Elsewhere than in a cell on ranks it is ``iterable`` itself.

    Args:
      keep: how often: a time (``"60s"``, ``"5min"``), or a number of iterations.
      state: a dict or a list that has all that the loop changes: it alone is kept, and put back in
        place. In a function this is needed before Python 3.13.

    Raises:
      ValueError: ``keep`` is neither, or the loop is inside of one that is kept.
      RuntimeError: the loop can't be kept here; why is said.
    """
    from jaxcluster.engine.steps import active_loops, loop

    return loop.make(iterable, keep, state, loop.caller(), active_loops.active)


def log(*, step: int | None = None, **values: Any) -> None:
    """Log numbers of a step: ``jaxcluster.log(loss=loss)``.

    Rank 0 adds a line of JSON to ``jaxcluster-log.jsonl`` in its current folder, and draws them
    under the cell. It waits for no array: those are read when they are computed. Elsewhere than in
    a cell on ranks it does nothing.

    Args:
      step: by default the iterations behind the innermost loop of ``jaxcluster.steps``.

    Raises:
      TypeError: a value is not one number that rank 0 has.
    """
    from jaxcluster.engine.steps import active_loops

    if active_loops.active is not None:
        active_loops.active.curve.log(values, step)


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext jaxcluster``: register the magics."""
    from jaxcluster.notebook.magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext jaxcluster``: stop this notebook's clusters and remove the magics.

    ``%reload_ext jaxcluster`` keeps both.
    """
    from jaxcluster.notebook.magics import unload

    unload(ipython)
