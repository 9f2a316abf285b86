"""What becomes of meshes of all devices where there are more devices, or fewer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jaxcluster.errors import UsageError
from jaxcluster.text import plural


def fit_mesh(
    names: Sequence[str], sizes: Sequence[int], devices: int, wanted: Mapping[str, int]
) -> list[int]:
    """The sizes of a mesh's axes on so many devices; empty where it does not fit them. Pure.

    One axis takes the change. Axes of size 1 don't, unless they are named.

    Raises:
      UsageError: it fits in several ways, or not as ``wanted`` says.
    """
    told = _tell(names, sizes)
    after = [wanted.get(name, size) for name, size in zip(names, sizes, strict=True)]
    if after != list(sizes):
        if math.prod(after) == devices:
            return after
        raise UsageError(
            f"The mesh {told} would become {_tell(names, after)}, which are not "
            f"{plural(devices, 'device')}."
        )
    if math.prod(sizes) == devices:
        return after
    found = []
    for axis, size in enumerate(sizes):
        others = math.prod(sizes) // size
        if devices % others == 0 and (size > 1 or math.prod(sizes) == 1):
            found.append([*sizes[:axis], devices // others, *sizes[axis + 1 :]])
    if len(found) > 1:
        ways = " or ".join(_tell(names, one) for one in found)
        raise UsageError(
            f"The mesh {told} can become {ways} on {plural(devices, 'device')}.",
            f"Say which: --mesh {_tell(names, found[0])}",
        )
    return found[0] if found else []


def _tell(names: Sequence[str], sizes: Sequence[int]) -> str:
    return ",".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
