"""What a rank says of a value that all ranks are to be compared by: its text and a hash.

On the main thread, at the end of the cell that has computed it. Nothing is launched for it: of an
array that spans processes only what this rank holds is read.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from typing import Any

from jaxcluster import wire
from jaxcluster.engine import digests, replicas
from jaxcluster.engine.arrays import (
    base_array,
    check_leaves,
    is_array,
    read_numbers,
    spans_processes,
)

MOST_CHARS = 4_000  # of the text, which is sent by each rank
MOST_NBYTES = 1 << 28  # that are hashed, some 0.3 s
MOST_ELEMENTS = 200_000


def looked_at(value: Any, text: str) -> dict[str, Any]:
    """A ``wire.ValueLook`` as JSON.

    Args:
      text: how IPython would show it.
    """
    look = wire.ValueLook(wire.type_name(type(value)), text)
    if spans_processes(value):
        look = _spanning(base_array(value))
    else:
        look = replace(look, digest=_digest(value))
    with contextlib.suppress(Exception):  # a container that can't be taken apart
        look = replace(look, copies=_copies(value))
    cut = max(0, len(look.text) - MOST_CHARS)
    return asdict(replace(look, text=look.text[:MOST_CHARS], cut_chars=cut))


def _spanning(array: Any) -> wire.ValueLook:
    """Of one that each process has whole its own copy; of others what it is."""
    about = f"{array.dtype}{list(array.shape)}"
    if array.is_fully_replicated:
        own = read_numbers(array.addressable_data(0))
        return wire.ValueLook("Array", f"{about}, a copy on each rank: {own!r}", _digest(own))
    return wire.ValueLook("Array", f"{about} over several ranks: {array.sharding}", _digest(array))


def _digest(value: Any) -> str:
    try:
        return digests.digest(value, digests.Room(MOST_ELEMENTS, MOST_NBYTES)).text
    except digests.Unknown:
        return ""


def _copies(value: Any) -> list[list[Any]]:
    """Hashes of what other processes have a copy of, too."""
    if is_array(value):
        leaves = [value]
    else:
        import jax

        check_leaves(value)
        leaves = jax.tree_util.tree_leaves(value)
    arrays = [(number, leaf) for number, leaf in enumerate(leaves) if is_array(leaf)]
    return replicas.hashes(arrays, replicas.Room(replicas.LOOK_NBYTES))
