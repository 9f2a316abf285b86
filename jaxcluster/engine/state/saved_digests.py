"""Which names have equal values on several ranks, by the files that these have saved.

A rank that saves its values for new processes writes down a digest of each. A copy (``copier``) has
none: it is made after each cell, and is read only where its rank has died.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxcluster.engine.digests import LITERAL, is_literal
from jaxcluster.engine.state import memory
from jaxcluster.engine.state.saved import Generation, Glance, SavedPickle, array_digest

MOST_NBYTES = 256  # of the pickle of a value that is told as it is


def with_digests(
    had: Mapping[int, Generation], files: Mapping[int, Glance]
) -> dict[int, Generation]:
    """The same, with what tells values apart where one of them is a copy's.

    Costs about 1 s for each GB that Python's values have: those of arrays that span processes
    are not read.
    """
    if all(one.digests or not one.names for one in had.values()):
        return dict(had)
    return {rank: _made(one, files[rank]) for rank, one in had.items()}


def _made(one: Generation, file: Glance) -> Generation:
    views: list[memory.View] = pickle.loads(file.section(file.saved.views))
    digests = {name: _digest(found, file, views) for name, found in one.names.items()}
    return replace(one, digests=digests, texts=one.texts or _texts(one, file))


def _digest(one: SavedPickle, file: Glance, views: list[memory.View]) -> str:
    """As ``saving`` makes it of what it writes, but for classes that go by value."""
    saved = file.saved
    digest = hashlib.blake2b(file.section(one.section), digest_size=12)
    for number in one.buffers:
        digest.update(file.section(number))
    for view in (views[n] for n in one.views):
        digest.update(f"{view.shape} {view.dtype}".encode())
        section = file.section(saved.memories[view.memory])
        array = np.ndarray(view.shape, view.dtype, section, view.offset, view.strides)
        digest.update(np.ascontiguousarray(array).tobytes())
    for known in (saved.arrays[n] for n in one.arrays):
        digest.update(array_digest(known, file.section))
    return digest.hexdigest()


def _texts(one: Generation, file: Glance) -> dict[str, str]:
    """Of numbers, strings and the like what they are, as ranks tell it with each reply."""
    found = {}
    for name, pickled in one.names.items():
        data = file.section(pickled.section)
        if len(data) <= MOST_NBYTES:
            with contextlib.suppress(Exception):  # it is of another kind
                value = _Plain(io.BytesIO(data)).load()
                if is_literal(value):
                    found[name] = LITERAL + repr(value)
    return found


class _Plain(pickle.Unpickler):
    """Reads what is made of nothing but builtin values."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not looked for")
