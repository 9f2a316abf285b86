"""Why no cell can run, and what can be done, by what has become of a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxcluster.model.availability import ClusterCondition, advice, refusal
from jaxcluster.wire import Death
from jaxcluster.wire.forks import RESTARTED, STOPPED

WELL = ClusterCondition("c")
DEAD = replace(WELL, dead={2: Death("killed by SIGKILL"), 1: Death("out of memory")})
DOWN = replace(WELL, down="Cluster 'c' has no processes now.", down_hint="Restart it.")
CUT = replace(DEAD, unreachable={"h2": "no route"})


def test_a_cluster_that_is_well_runs_cells() -> None:
    assert refusal(WELL) is None


def test_no_cell_waits_for_a_look_at_who_has_started_the_cluster() -> None:
    def look() -> bool:
        raise AssertionError

    assert refusal(replace(WELL, is_ours=False, has_owner=look)) is None
    assert advice(replace(DEAD, has_owner=look)) is None


def test_who_died_first_by_rank_is_told_and_new_processes_are_given() -> None:
    why = refusal(DEAD)
    assert why is not None
    assert why.message == "Ranks 1, 2 died (out of memory), so the cell was not run."
    assert (why.hint, why.ranks, why.when) == ("", (1, 2), "when ranks 1, 2 died")
    assert advice(DEAD) is None


def test_no_rank_can_do_without_jaxs_coordinator() -> None:
    why = refusal(replace(WELL, coordinator_died="killed by SIGKILL"))
    assert why is not None and why.when == "when JAX's coordinator died"
    assert not why.ranks and not why.hint


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (DOWN, "Restart it."),
        (replace(DEAD, is_stopped=True), "%jaxcluster start"),
        (CUT, "%jaxcluster attach c"),
    ],
    ids=["down", "stopped", "cut"],
)
def test_where_nothing_can_be_done_from_here_it_is_said_what_to_type(
    condition: ClusterCondition, said: str
) -> None:
    why, hint = refusal(condition), advice(condition)
    assert why is not None and said in why.hint
    assert hint is not None and said in hint


def test_what_is_down_is_down_whatever_else_it_is() -> None:
    why = refusal(replace(DOWN, is_stopped=True, dead=DEAD.dead, unreachable=CUT.unreachable))
    assert why is not None and why.message == DOWN.down


def test_only_who_has_started_it_can_give_it_new_processes() -> None:
    attached = replace(DEAD, is_ours=False, has_owner=lambda: True)
    assert "%jaxcluster attach c connects to its new processes then." in str(advice(attached))
    assert "%jaxcluster stop ends it" in str(advice(replace(attached, has_owner=lambda: False)))


@pytest.mark.parametrize(
    ("why", "said", "hint"),
    [
        (STOPPED, "The cluster was stopped", "%jaxcluster start starts another."),
        (RESTARTED, "The cluster was restarted", "%jaxcluster attach c connects to its new proc"),
    ],
)
def test_ranks_that_another_process_has_ended_have_not_died(why: str, said: str, hint: str) -> None:
    ended = replace(WELL, is_ours=False, has_owner=lambda: True, dead={0: Death(why)})
    found = refusal(ended)
    assert found is not None and found.message == f"{said}, so the cell was not run."
    assert ended.without_dead == f"{said}."
    assert str(advice(ended)).startswith(hint)


def test_new_processes_are_given_only_where_that_is_wanted() -> None:
    assert "%jaxcluster restart" in str(advice(replace(DEAD, recovery="never")))


def test_ranks_behind_a_cut_are_not_called_dead() -> None:
    assert DEAD.without_dead == "Ranks 1, 2 died (killed by SIGKILL; out of memory)."
    assert CUT.without_dead.startswith("Ranks 1, 2 can't be reached (")
