"""Which names have equal values on several ranks, by the files of saved ranks and of copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxcluster.engine.state.saved import Generation, Glance, SavedArray, write
from jaxcluster.engine.state.saved_digests import array_digest, with_digests
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


def files_of(folder: Path, digests: bool) -> tuple[dict[int, Generation], dict[int, Glance]]:
    """Of two ranks, the second one's as a copy has it."""
    found = {}
    for rank in (0, 1):
        own: dict[str, Any] = {name: values[rank] for name, values in OWN.items()}
        saved = save({**COMMON, **own}, rank, digests=digests and not rank)
        path = folder / f"rank-{rank}.state"
        write(saved, path)
        found[rank] = Glance(path)
    return {rank: file.saved.now for rank, file in found.items()}, found


@pytest.mark.parametrize("digests", [True, False])
def test_values_of_a_copy_are_compared_by_what_is_in_its_file(
    tmp_path: Path, digests: bool
) -> None:
    had = with_digests(*files_of(tmp_path, digests))
    first, second = had[0].digests, had[1].digests
    assert {name for name in first if first[name] == second[name]} == {*COMMON}
    assert {*first} == {*second} == {*COMMON, *OWN}
    assert [had[rank].texts["rank"] for rank in (0, 1)] == ["=0", "=1"]
    assert had[1].texts["lr"] == "=0.5"


def test_where_all_have_digests_no_file_is_read() -> None:
    had = {0: Generation({}, digests={"lr": "d"}), 1: Generation()}
    assert with_digests(had, {}) == had


def test_of_an_array_that_spans_processes_the_metadata_count_and_of_another_the_numbers() -> None:
    def digest(local: bool, text: str, data: bytes) -> bytes:
        array = SavedArray([4], "float32", 0, local, True, [([[0, 4]], 0)], text=text)
        return array_digest(array, [data].__getitem__)

    assert digest(True, "", b"a") != digest(True, "", b"b")
    assert digest(False, "P('i')", b"a") == digest(False, "P('i')", b"b")
    assert digest(False, "P('i')", b"a") != digest(False, "P()", b"a")
