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

__version__ = "0.1.0"

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from typing import Any

    from jaxcluster.cluster import Cluster, RunningCell, attach, current, start
    from jaxcluster.errors import JaxClusterError
    from jaxcluster.job.agree import agree

__all__ = [
    "Cluster",
    "JaxClusterError",
    "RunningCell",
    "__version__",
    "agree",
    "attach",
    "current",
    "load_ipython_extension",
    "seed",
    "start",
    "unload_ipython_extension",
]


def __getattr__(name: str) -> Any:
    """Import what a name needs when it is first asked for: a rank needs no cluster."""
    room = {"agree": "job.agree", "JaxClusterError": "errors"}.get(name, "cluster")
    if name not in __all__:
        raise AttributeError(f"module 'jaxcluster' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"jaxcluster.{room}"), name)


def seed(number: int) -> None:
    """Seed ``random`` and ``np.random``. In a cell, all ranks then draw the same numbers.

    Without it each process draws other numbers, as in scripts. JAX's keys (``jax.random.key(0)``)
    are equal on all ranks anyway, and so is ``np.random.default_rng(0)``. For another seed on each
    rank, add ``jax.process_index()``.
    """
    import random

    import numpy as np

    random.seed(number)
    np.random.seed(number)


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
