"""What is done when ranks have died, hang permanently or have diverged, and to take a cell back."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet

from jaxcluster.cluster import replay, undoing
from jaxcluster.cluster.action_runner import Owner
from jaxcluster.errors import (
    CellInterrupted,
    JaxClusterError,
    NoCluster,
    RankDied,
    RecoveryError,
    UsageError,
)
from jaxcluster.lockstep import actions
from jaxcluster.lockstep.availability import advice, refusal
from jaxcluster.lockstep.undone import Undone
from jaxcluster.model import skipped, suspect_launches
from jaxcluster.model.outputs import CellRecord


def ensure_open(cluster: Owner) -> None:
    """See ``Cluster.ensure_open``."""
    if (why := refusal(cluster.condition)) is None:
        return
    if why.hint:
        raise NoCluster(why.message, why.hint)
    log_end = cluster.world.say_log_end(why.ranks[0]) if why.ranks else ""
    done = recover(cluster, log_end, message=why.message, when=why.when)
    raise RankDied(why.message, done, list(why.ranks))


def recover(cluster: Owner, evidence: str, *, message: str, when: str, undo: bool = False) -> str:
    """See ``Cluster.recover``."""
    hint = advice(cluster.condition)
    if hint is None:
        try:
            with cluster.changing:  # another thread may have done it just now
                if cluster.is_broken:
                    hint = cluster.restart(when=when, undo=undo)
                else:
                    hint = cluster.recovered
        except JaxClusterError as error:
            hint = f"Recovery failed: {error}"
        except CellInterrupted as stop:
            raise CellInterrupted("\n".join(filter(None, [message, str(stop)]))) from None
    return "\n".join(filter(None, [evidence, hint]))


def bring_into_lockstep(cluster: Owner) -> str:
    """By a replay of what ranks have skipped, or by new processes; returns what was done."""
    started, was_broken = time.monotonic(), cluster.is_broken
    begun = replay.Replay(cluster.world.link)
    if not cluster.world.dead and begun.bring_back(cluster.world.turns):
        cluster.world.counts.clear()
        cluster.world.pending_launches.clear()
        cluster.world.divergence = None
        if was_broken:  # else other notebooks open them, or a cell that waits for their ends
            states = cluster.world.status()
            cluster.world.open_gates({seq for s in states for seq in (*s.gate[:1], s.ended)})
        kept = _judge_met(cluster, suspect_launches.met_zeros(begun.core.first))
        return skipped.tell(begun.core.ran, time.monotonic() - started, kept)
    why = begun.core.why_not
    if begun.core.is_under_way and not was_broken:
        raise RecoveryError(
            f"Nothing was done, since {why}.",
            "Wait for them. %jaxcluster restart gives the ranks new processes without.",
        )
    why = f"The ranks needed new processes, since {why}." if why else ""
    return "\n".join(filter(None, [cluster.restart(), why]))


def _judge_met(cluster: Owner, told: AbstractSet[int]) -> str:
    """Take the last cell back if it met zeros, and say which others have; what comes of it.

    ``told``: those that had met zeros before the replay, of which others have told.
    """
    reports = replay.ask_reports(cluster.world.link)
    met = suspect_launches.met_zeros(reports)
    last = max(cluster.world.turns.last_cells().values(), default=0)
    undone = _undo_last(cluster, last) if last in met else None
    kept = "All variables are kept." if undone is None else undone.told("The last cell")
    others = met - told - {last}
    threads = suspect_launches.THREADS if 0 in others else ""
    return " ".join(filter(None, [kept, suspect_launches.tell_met(others - {0}, reports), threads]))


def _undo_last(cluster: Owner, last: int) -> Undone | None:
    """Take the last cell back, whoever has sent it. None: it is taken back."""
    own = cluster.last
    if own is not None and own.seq >= last:
        return None if own.undone else _take_back(cluster, own)
    ranks = tuple(rank for rank in cluster.world.link.ranks if rank not in cluster.world.dead)
    return undoing.undo(cluster.world, last, last, actions.Undo(ranks, False))


def undo(cluster: Owner) -> str:
    """See ``Cluster.undo``."""
    if cluster.last is None:
        raise UsageError("No cell of this notebook has run on this cluster.", "%%spmd runs one.")
    cell = f"Cell [{cluster.last.execution_count}]"
    if cluster.cells:
        raise UsageError(f"{cell} has not ended.", "%jaxcluster interrupt stops it.")
    undone = _take_back(cluster, cluster.last)
    if undone.refused:
        raise UsageError(f"{cell} can't be undone: {undone.refused}.")
    return undone.told(cell)


def _take_back(cluster: Owner, cell: CellRecord) -> Undone:
    """Take a cell of this notebook back."""
    ranks = tuple(rank for rank in cell.ranks if rank not in cluster.world.dead)
    undone = undoing.undo(
        cluster.world,
        cell.seq,
        cell.execution_count,
        actions.Undo(ranks, False),
        looked=cluster.world.looks,
        answer_s=undoing.ASKED_FOR_S,
    )
    if not undone.refused:
        cluster.lineage.undone(cell.seq, undone.in_doubt)
        cell.undone = True
    return undone
