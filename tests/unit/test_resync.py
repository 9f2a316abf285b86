"""What is forgotten of ranks that are in lockstep again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxcluster import wire
from jaxcluster.cluster import recovery, replay
from jaxcluster.cluster.action_runner import ActionRunner
from jaxcluster.cluster.running import CellOptions, RunningCell
from jaxcluster.errors import RecoveryError
from jaxcluster.lockstep import actions
from jaxcluster.lockstep.settling import Settling, Steps
from jaxcluster.lockstep.undone import Undone
from jaxcluster.model import suspect_launches
from jaxcluster.model.findings import Reason
from jaxcluster.model.outputs import CellRecord
from jaxcluster.wire.link import Sink


@pytest.fixture(autouse=True)
def looked(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, wire.RankReport]]:
    """What the ranks report, at one look after the other; nothing from the last one on."""
    told: list[dict[int, wire.RankReport]] = []
    monkeypatch.setattr(recovery.replay, "ask_reports", lambda link: told.pop(0) if told else {})
    return told


def test_what_threads_might_have_made_is_forgotten_with_a_resync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay has made it: a launch of a later cell's would be taken for it, and called wrong."""
    monkeypatch.setattr(recovery.replay.Replay, "bring_back", lambda replay, turns: "replayed")
    held = SimpleNamespace(gate=[4, 0, 1], ended=3)
    opened: list[int] = []
    world = SimpleNamespace(
        counts={0: 1}, pending_launches={0: 1}, divergence=object(), dead={}, link=None,
        turns=SimpleNamespace(last_cells=dict), status=lambda: [held], open_gates=opened.extend,
    )  # fmt: skip
    cluster: Any = SimpleNamespace(world=world, last=None, is_broken=True)
    assert recovery.bring_into_lockstep(cluster).startswith("Back in lockstep")
    assert not world.counts and not world.pending_launches and world.divergence is None
    assert sorted(opened) == [3, 4]  # also of what waits for none yet
    cluster.is_broken = False  # other notebooks judge the cells that are waited for
    recovery.bring_into_lockstep(cluster)
    assert sorted(opened) == [3, 4]


@pytest.mark.parametrize(
    ("met", "undone", "said"),
    [
        (7, False, "The last cell is undone. Removed x."),
        (7, True, "All variables are kept."),
        (5, False, "All variables are kept. Don't trust what cell [3] assigned."),
        (0, False, f"All variables are kept. {suspect_launches.THREADS}"),  # no cell's
    ],
)
@pytest.mark.parametrize("is_told", [False, True])  # it had met them before, as was said then
def test_a_resync_takes_back_what_met_zeros(
    monkeypatch: pytest.MonkeyPatch,
    looked: list[dict[int, wire.RankReport]],
    met: int,
    undone: bool,
    said: str,
    is_told: bool,
) -> None:
    def bring_back(replay: Any, turns: Any) -> str:
        replay.core.ran = {1: 1}
        replay.core.first = after if is_told else {}
        return "replayed"

    def report(rank: int, seq: int) -> wire.RankReport:
        state = wire.RankState(rank, 9, "here", "idle")
        return wire.RankReport(state, [], [wire.Launch(0, "0,1", "f", 1, 3, 1, cell_seq=seq)])

    after = {0: report(0, met), 1: report(1, wire.OURS)}
    looked.append(after)
    monkeypatch.setattr(recovery.replay.Replay, "bring_back", bring_back)
    monkeypatch.setattr(recovery.undoing, "_undo_in_turn", lambda *asked: Undone(made=("x",)))
    heard: list[int] = []
    world = SimpleNamespace(
        counts={}, pending_launches={}, divergence=None, dead={}, link=None, status=list,
        turns=SimpleNamespace(last_cells=lambda: {0: 7, 1: 7}), open_gates=bool,
        hear_undo=lambda seq, names: heard.append(seq), looks=set(),
    )  # fmt: skip
    last = CellRecord(7, 3, "x = f(y)", [0, 1])
    last.undone = undone
    lineage = SimpleNamespace(undone=lambda seq, names: heard.append(seq))
    cluster: Any = SimpleNamespace(world=world, last=last, lineage=lineage, is_broken=True)
    if is_told and met != 7:
        said = "All variables are kept."
    assert recovery.bring_into_lockstep(cluster).endswith(said)
    assert heard == ([7, 7] if "undone" in said else [])


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
        is_broken=True,
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
        world=SimpleNamespace(turns=None, dead={}, link=None),
        restart=lambda: "New processes.",
        is_broken=True,
    )
    assert recovery.bring_into_lockstep(cluster) == (
        "New processes.\nThe ranks needed new processes, since rank 3 runs no cell, but its thread "
        "'loader' still runs."
    )
    cluster.is_broken = False  # it may be right, and would lose its thread
    said = "Nothing was done, since rank 3 runs no cell, but its thread 'loader' still runs."
    with pytest.raises(RecoveryError, match=said):
        recovery.bring_into_lockstep(cluster)


def test_a_cell_hears_what_a_replay_has_waited_for_where_it_has_no_other_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bring_back(replay: Any, turns: Any) -> str:
        thread = Reason("background", "runs no cell, but its thread 'loader' still runs")
        replay.core.pending = {3: thread}
        return ""

    monkeypatch.setattr(replay.Replay, "bring_back", bring_back)
    processes = SimpleNamespace(look_at=None, why_unseen=None)
    world = SimpleNamespace(link=None, dead={}, turns=None, processes=processes)
    own: Any = SimpleNamespace(record=SimpleNamespace(seq=7))
    runner = ActionRunner(cast("Any", SimpleNamespace(world=world)), own, Sink())
    done = runner.do(actions.BringBack(is_patient=True))
    assert done.stuck == "rank 3 runs no cell, but its thread 'loader' still runs"


def test_a_cell_is_settled_on_the_ranks_that_it_was_sent_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another cell's end may have put new ones in their place, on which it never ran."""

    def world(ranks: list[int]) -> Any:
        link = SimpleNamespace(ranks=ranks, dead={}, forget=lambda ids: None)
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


def test_what_a_stop_has_kept_from_being_done_is_done_first() -> None:
    """It was decided: the ranks' interrupt may be among it."""
    cell: Any = RunningCell.__new__(RunningCell)
    cell._left, done = [], []

    def do(action: str) -> None:
        done.append(action)
        if action == "stopped":
            raise KeyboardInterrupt
        if action == "asks":
            cell._do(["stopped", "of the answer"])

    cell._do_one = do
    with pytest.raises(KeyboardInterrupt):
        cell._do(["first", "asks", "last"])
    cell._do(["next"])
    assert done == ["first", "asks", "stopped", "of the answer", "last", "next"]
