"""Whether the last cell can be taken back, as far as that is known without asking a rank."""

from __future__ import annotations

from collections.abc import Mapping

from jaxcluster import wire
from jaxcluster.cluster import Cluster
from jaxcluster.panel import protocol


def of_last_cell(
    cluster: Cluster | None, states: Mapping[int, wire.RankState]
) -> protocol.Undo | None:
    """What a page shows of it; None where no cell of this notebook has run.

    Args:
      states: what the ranks have said last.
    """
    if cluster is None or cluster.closed or (last := cluster.last) is None:
        return None
    refused = ""
    if cluster.cells:
        refused = "It has not ended."
    elif cluster.record.created_ns > last.sent_ns:
        refused = "The ranks have new processes since."
    elif cluster.undo_nbytes == 0:
        refused = "Undo is switched off. To switch it on: %jaxcluster undo on"
    elif any(
        max(state.seq, state.ended) > last.seq and state.ended not in cluster.world.looks
        for rank, state in states.items()
        if rank in last.ranks
    ):
        refused = "Another cell has run since."
    if last.undone:
        refused = "It is undone."
    return protocol.Undo(
        last.seq, last.cell_id, last.execution_count, is_done=last.undone, refused=refused
    )
