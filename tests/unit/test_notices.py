"""What is said under a cell while it runs."""

from __future__ import annotations

from jaxcluster import wire
from jaxcluster.model import notices
from jaxcluster.model.outputs import CellRecord


def record(**errors: wire.ErrorInfo) -> CellRecord:
    """A cell of 4 ranks; ``r1`` is what rank 1 raised."""
    made = CellRecord(seq=1, execution_count=7, source="pass", ranks=[0, 1, 2, 3])
    for rank, error in errors.items():
        made.add_reply(wire.CellReply(int(rank[1:]), 1, "error", 0.1, error))
    return made


def test_equal_faults_of_ours_are_told_once() -> None:
    made = CellRecord(seq=1, execution_count=7, source="pass", ranks=[0, 1, 2])
    for rank, fault in enumerate(["KeyError: 1", "", "KeyError: 1"]):
        made.add_reply(wire.CellReply(rank, 1, "ok", 0.1, fault=fault))
    (told,) = notices.faults(made)
    assert told.startswith("jaxcluster itself failed on ranks 0, 2 after the cell's own code")
    assert "KeyError: 1. %jaxcluster logs 0 has" in told
