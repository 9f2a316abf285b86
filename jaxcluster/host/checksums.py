"""Sums of bytes, by which is seen that they are what was written."""

from __future__ import annotations

from typing import Any


def quick_sum(data: Any) -> int:
    """A sum of bytes, at the speed at which memory is read. Not against who forges."""
    import numpy as np

    flat = np.frombuffer(data, np.uint8)
    whole = len(flat) // 8 * 8
    words = flat[:whole].view(np.uint64)
    rest = int.from_bytes(flat[whole:].tobytes(), "little")
    total = (int(np.add.reduce(words, dtype=np.uint64)) + rest + len(flat)) % (1 << 64)
    return (total << 64) + int(np.bitwise_xor.reduce(words, initial=0))
