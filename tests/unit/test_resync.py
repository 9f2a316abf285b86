"""What is forgotten of ranks that are in lockstep again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxcluster.cluster import recovery
from jaxcluster.cluster.action_runner import ActionRunner
from jaxcluster.cluster.running import CellOptions, RunningCell
from jaxcluster.lockstep import actions
from jaxcluster.lockstep.settling import Settling, Steps
from jaxcluster.model.findings import Reason
from jaxcluster.model.outputs import CellRecord
from jaxcluster.wire.link import Sink


def test_what_threads_might_have_made_is_forgotten_with_a_resync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay has made it: a launch of a later cell's would be taken for it, and called wrong."""
    monkeypatch.setattr(recovery.replay.Replay, "bring_back", lambda replay, turns: "replayed")
    held = SimpleNamespace(gate=[4, 0, 1])
    opened: list[int] = []
    world = SimpleNamespace(
        counts={0: 1}, pending_launches={0: 1}, divergence=object(), turns=None, dead={}, link=None,
        status=lambda: [held], open_gates=opened.extend,
    )  # fmt: skip
    cluster: Any = SimpleNamespace(world=world)
    assert recovery.bring_into_lockstep(cluster).startswith("Back in lockstep")
    assert not world.counts and not world.pending_launches and world.divergence is None
    assert opened == [4]


def test_what_threads_might_have_made_is_forgotten_once_it_is_settled() -> None:
    """By the thread itself, or by the cell that brings the ranks back."""
    one, another, third = (cast("Any", object()) for _ in range(3))
    processes = SimpleNamespace(look_at=None, why_unseen=None)
    world = SimpleNamespace(pending_launches=[one], processes=processes)
    cluster: Any = SimpleNamespace(world=world)
    runner = ActionRunner(cluster, cast("Any", SimpleNamespace(record=None)), Sink())
    runner.do(actions.AddPending((another, third)))
    runner.do(actions.DropPending((another,)))
    runner.do(actions.DropPending((another,)))  # another cell has forgotten it meanwhile
    assert world.pending_launches == [one, third]
    runner.do(actions.DropPending())
    assert world.pending_launches == []


def test_why_new_processes_were_needed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def bring_back(replay: Any, turns: Any) -> str:
        replay.core.stuck = "they launched different programs"
        return ""

    monkeypatch.setattr(recovery.replay.Replay, "bring_back", bring_back)
    cluster: Any = SimpleNamespace(
        world=SimpleNamespace(turns=None, dead={}, link=None),
        restart=lambda: "New processes after 1.0 s: 2 variables kept.",
    )  # fmt: skip
    assert recovery.bring_into_lockstep(cluster) == (
        "New processes after 1.0 s: 2 variables kept.\n"
        "The ranks needed new processes, since they launched different programs."
    )


def test_what_they_wait_for_is_told_where_no_other_reason_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bring_back(replay: Any, turns: Any) -> str:
        thread = Reason("background", "runs no cell, but its thread 'loader' still runs")
        replay.core.pending = {3: thread}
        return ""

    monkeypatch.setattr(recovery.replay.Replay, "bring_back", bring_back)
    cluster: Any = SimpleNamespace(
        world=SimpleNamespace(turns=None, dead={}, link=None), restart=lambda: "New processes."
    )
    assert recovery.bring_into_lockstep(cluster) == (
        "New processes.\nThe ranks needed new processes, since rank 3 runs no cell, but its thread "
        "'loader' still runs."
    )


def test_a_cell_is_settled_on_the_ranks_that_it_was_sent_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another cell's end may have put new ones in their place, on which it never ran."""

    def world(ranks: list[int]) -> Any:
        link = SimpleNamespace(ranks=ranks, forget=lambda ids: None)
        processes = SimpleNamespace(look_at=None, why_unseen=None)
        kept = {
            "dead": {},
            "last_launches": {},
            "counts": {},
            "pending_launches": [],
            "divergence": None,
        }
        rest = {"is_over": False, "unreachable": {}, "hosts": {}, "stays": False}
        return SimpleNamespace(link=link, processes=processes, **kept, **rest)

    cluster: Any = SimpleNamespace(
        lineage=None,
        world=world([0, 1]),
        cells=[],
        sent=[],
        closed=False,
        recovery="auto",
        can_restart=True,
    )
    record = CellRecord(1, 1, "pass", [0, 1])
    cell = RunningCell(cluster, record, Sink(), [], CellOptions(post_mortem=True))
    cell.core.watch.finished = True
    cluster.world = world([0, 1, 2])
    settled_on: list[Any] = []

    def settle(settling: Any) -> Steps[None]:
        facts: Any = yield actions.LookAround()
        settled_on.extend(facts.ranks)

    monkeypatch.setattr(Settling, "settle", settle)
    cell._carry()
    assert settled_on == [0, 1]
