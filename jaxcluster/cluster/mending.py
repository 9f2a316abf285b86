"""What is done when ranks have died, hang for good or have diverged, and to take a cell back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jaxcluster.cluster import recovery, telling, undoing
from jaxcluster.errors import CellInterrupted, JaxClusterError, NoCluster, RankDied, UsageError
from jaxcluster.ranks import name_ranks

if TYPE_CHECKING:
    from jaxcluster.cluster.handle import Cluster


def check_open(cluster: Cluster) -> None:
    """See ``Cluster.check_open``."""
    if cluster.down:
        raise NoCluster(cluster.down, cluster.down_hint)
    if cluster.closed or cluster.is_ending:
        raise NoCluster(f"Cluster {cluster.name!r} is stopped.", "%jaxcluster start -n 4")
    if unreachable := cluster.world.unreachable:
        why = "; ".join(f"{host}: {why}" for host, why in unreachable.items())
        raise NoCluster(
            f"Hosts can't be reached from here, so the cell was not run ({why}).",
            telling.again(cluster),
        )
    if cluster.dead:
        rank, facts = next(iter(sorted(cluster.dead.items())))
        dead = sorted(cluster.dead)
        told = f"{name_ranks(dead).capitalize()} died ({facts['why']}), so the cell was not run."
        said = cluster.world.say_log_end(rank)
        when = f"when {name_ranks(dead)} died"
        raise RankDied(told, recover(cluster, said, told=told, when=when), dead)
    if cluster.coordinator_died:  # this jax's ranks outlive it
        told = f"JAX's coordinator died ({cluster.coordinator_died}), so the cell was not run."
        raise RankDied(
            told, recover(cluster, "", told=told, when="when JAX's coordinator died"), []
        )


def recover(cluster: Cluster, said: str, *, told: str, when: str, undo: bool = False) -> str:
    """See ``Cluster.recover``."""
    stopped = cluster.closed or cluster.is_ending  # by another thread or process, under the cell
    hint = "%jaxcluster restart gives it new processes with the variables that live."
    if cluster.down:
        hint = f"{cluster.down}\n{cluster.down_hint}"
    elif stopped:
        hint = "%jaxcluster start starts another."
    elif cluster.world.unreachable:
        hint = telling.again(cluster)
    elif cluster.world.processes is None:
        hint = (
            "The notebook that started it can restart it; "
            f"{telling.how_to_attach(cluster)} connects to its new processes then."
            if cluster.record.owner
            else "%jaxcluster stop ends it; %jaxcluster start starts another."
        )
    elif cluster.recovery == "auto":
        try:
            with cluster.changing:  # another thread may have done it just now
                if cluster.is_broken:
                    hint = cluster.restart(when=when, undo=undo)
                else:
                    hint = cluster.recovered
        except JaxClusterError as error:
            hint = f"Recovery failed: {error}"
        except CellInterrupted as stop:
            raise CellInterrupted("\n".join(filter(None, [told, str(stop)]))) from None
    return "\n".join(filter(None, [said, hint]))


def bring_into_lockstep(cluster: Cluster) -> str:
    """By a replay of what ranks have skipped, or by new processes; returns what was done."""
    started = time.monotonic()
    replay = recovery.Replay(cluster.link)
    if not cluster.dead and recovery.bring_back(cluster.world.turns, cluster.link, replay):
        cluster.world.counts.clear()
        cluster.world.excused.clear()
        cluster.world.divergence = None
        return replay.told(time.monotonic() - started, "All variables are kept.")
    return cluster.restart()


def undo(cluster: Cluster) -> str:
    """See ``Cluster.undo``."""
    if cluster.last is None:
        raise UsageError("No cell of this notebook has run on this cluster.", "%%spmd runs one.")
    number = cluster.last.execution_count
    cell = f"Cell [{number}]"
    if cluster.cells:
        raise UsageError(f"{cell} has not ended.", "%jaxcluster interrupt stops it.")
    ranks = [rank for rank in cluster.last.ranks if rank not in cluster.dead]
    undone = undoing.undo(cluster.link, cluster.world.turns, cluster.last.seq, number, ranks)
    if undone.refused:
        raise UsageError(f"{cell} can't be undone: {undone.refused}.")
    return undone.told(cell)
