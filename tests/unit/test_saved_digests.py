"""Which names have equal values on several ranks, by what these have saved."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcluster.engine.state.saved import Generation, SavedArray
from jaxcluster.engine.state.saved_digests import array_digest
from jaxcluster.engine.state.saving import save

COMMON = {
    "lr": 0.5,
    "names": ["a", "b"],
    "table": np.arange(100_000.0).reshape(2, -1).T,
    "raw": bytearray(b"raw" * 5),
    # Larger than any memory, where each element is taken for itself.
    "spread": np.broadcast_to(np.arange(3.0), (1 << 20, 1 << 20, 3)),
    "windows": np.lib.stride_tricks.sliding_window_view(np.arange(1 << 20), 1 << 19)[:, ::-1],
}
OWN = {
    "rank": (0, 1),
    "mine": ("of 0", "of 1"),
    "seeds": (np.arange(3), np.arange(1, 4)),
    "told": tuple(np.broadcast_to(float(rank), (1 << 20, 1 << 20)) for rank in (0, 1)),
}


def saved_by(rank: int) -> Generation:
    own: dict[str, Any] = {name: values[rank] for name, values in OWN.items()}
    return save({**COMMON, **own}, rank, digests=True).now


def test_equal_values_have_equal_digests() -> None:
    first, second = saved_by(0), saved_by(1)
    assert {*first.digests} == {*second.digests} == {*COMMON, *OWN}
    alike = {name for name, digest in first.digests.items() if digest == second.digests[name]}
    assert alike == {*COMMON}
    assert [one.texts["rank"] for one in (first, second)] == ["=0", "=1"]
    assert second.texts["lr"] == "=0.5"


def test_of_an_array_that_spans_processes_the_metadata_count_and_of_another_the_numbers() -> None:
    def digest(local: bool, text: str, data: bytes) -> bytes:
        array = SavedArray([4], "float32", 0, local, True, [([[0, 4]], 0)], text=text)
        return array_digest(array, [data].__getitem__)

    assert digest(True, "", b"a") != digest(True, "", b"b")
    assert digest(False, "P('i')", b"a") == digest(False, "P('i')", b"b")
    assert digest(False, "P('i')", b"a") != digest(False, "P()", b"a")
