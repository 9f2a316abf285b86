"""Why no cell can run, and what can be done, by what has become of a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.cluster.recovery import advice, ensure_open, losses
from jaxcluster.errors import NoCluster
from jaxcluster.wire import Death
from jaxcluster.wire.forks import RESTARTED, STOPPED

DEAD = {2: Death("killed by SIGKILL"), 1: Death("out of memory")}
CUT = {"h2": "no route"}


def cluster(
    dead: Any = DEAD, unreachable: Any = (), is_ours: bool = True, ended_by: str = "", **has: Any
) -> Any:
    world = SimpleNamespace(
        dead=dead,
        unreachable=unreachable,
        is_ending=False,
        is_ours=is_ours,
        ended_by=ended_by,
        coordinator_died="",
        log_excerpt=lambda rank: "",
    )
    stands = {"name": "c", "world": world, "dead": dead, "down": "", "closed": False}
    stands |= {"record": SimpleNamespace(has_owner=True), "recovery": "auto"}
    return SimpleNamespace(check_not_closed=lambda: None, **stands | has)


LEFT_ALONE = cluster(is_ours=False, record=SimpleNamespace(has_owner=False))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (cluster(), "None"),
        (cluster(unreachable=CUT), "%jaxcluster attach c"),
        (cluster({}, closed=True), "%jaxcluster start"),
        (cluster(down="No processes.\nRestart it."), "Restart it."),
        (cluster(is_ours=False), "%jaxcluster attach c connects to its new processes then."),
        (LEFT_ALONE, "%jaxcluster stop c ends it"),
        (cluster(recovery="never"), "%jaxcluster restart"),
        (cluster(ended_by=STOPPED, is_ours=False), "%jaxcluster start starts another."),
        (cluster(ended_by=RESTARTED, is_ours=False), "attach c connects to its new processes."),
    ],
)
def test_it_is_said_what_to_type_if_nothing_can_be_done_from_here(found: Any, said: str) -> None:
    assert said in str(advice(found))


def test_a_cluster_that_is_well_runs_cells_and_another_says_what_to_type() -> None:
    ensure_open(cluster({}))
    with pytest.raises(NoCluster, match="%jaxcluster attach c"):
        ensure_open(cluster(unreachable=CUT))


def test_who_has_died() -> None:
    assert losses(cluster()) == "Ranks 1, 2 died (killed by SIGKILL; out of memory)"
    assert losses(cluster(unreachable=CUT)).startswith("Ranks 1, 2 can't be reached (")
    assert losses(cluster(ended_by=STOPPED)) == "The cluster was stopped"
