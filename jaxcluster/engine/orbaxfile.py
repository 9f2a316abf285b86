"""Arrays as an Orbax checkpoint, which any JAX program reads. Runs in a cell, on all ranks alike.

Orbax writes what each process has of an array that spans processes, and values of one process (a
number, a numpy array) from process 0 alone. So the notebook names only what is alike on all ranks.
Source: https://orbax.readthedocs.io
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np


def save(path: str, names: Sequence[str], namespace: Mapping[str, Any]) -> dict[str, str]:
    """Write a tree ``{name: value}`` of those names that are trees of arrays and numbers.

    Costs a copy of each array in host memory while it is written.

    Args:
      path: a new folder, which all ranks reach.

    Returns:
      Why the other names are not in it.

    Raises:
      ModuleNotFoundError: Orbax is not installed.
      ValueError: none of them can be written.
    """
    import orbax.checkpoint as ocp

    left: dict[str, str] = {}
    tree: dict[str, Any] = {}
    for name in names:
        try:
            tree[name] = jax.tree.map(_writable, namespace[name])
        except TypeError as error:
            left[name] = str(error)
        else:
            if not jax.tree.leaves(tree[name]):
                del tree[name]
                left[name] = "no arrays"
    if not tree:
        raise ValueError("no variable that is alike on all ranks is an array, or a tree of arrays")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
    return left


def _writable(leaf: Any) -> Any:
    """What Orbax takes.

    Raises:
      TypeError: it takes no such thing; the reason, in a few words.
    """
    if isinstance(leaf, jax.Array):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise TypeError("a PRNG key: save jax.random.key_data of it")
        try:
            leaf.block_until_ready()  # XLA may end the process where it is read without
        except jax.errors.JaxRuntimeError as error:
            raise TypeError(f"its computation failed: {error}") from None
        return np.asarray(leaf) if leaf.is_fully_addressable else leaf
    if isinstance(leaf, (bool, complex, np.generic)):
        leaf = np.asarray(leaf)
    if isinstance(leaf, (int, float)):
        return leaf
    if not isinstance(leaf, np.ndarray):
        raise TypeError(f"{type(leaf).__name__} is not an array")
    if leaf.dtype.kind not in "biufcV" or leaf.dtype.names:  # V: bfloat16 and the like
        raise TypeError(f"numpy's {leaf.dtype}")
    return leaf
