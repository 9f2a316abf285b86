"""What a cell's actions come to, beside the ranks that they are for."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.cluster import undoing
from jaxcluster.cluster.action_runner import ActionRunner
from jaxcluster.lockstep import actions
from jaxcluster.lockstep.undone import Undone
from jaxcluster.model.notices import Alarm, ClusterWarning, Warned
from jaxcluster.model.outputs import CellRecord
from jaxcluster.wire import Death
from jaxcluster.wire.forks import RESTARTED
from jaxcluster.wire.link import Sink
from jaxcluster.wire.ops.state import ALREADY_UNDONE


def runner(**world: Any) -> ActionRunner:
    """That of cell 5, whose notebook has sent cells 3 and 5."""
    processes = SimpleNamespace(look_at=None, why_unseen=None)
    parts = {"dead": {2: {}}, "turns": None, "own_cells": {3, 5}, "processes": processes, **world}
    parts.setdefault("link", SimpleNamespace(ranks=[0, 1, 2]))
    cluster: Any = SimpleNamespace(
        world=SimpleNamespace(**parts), changing=contextlib.nullcontext(), cells=[], sent=[],
        closed=False, recovery="auto", can_restart=True,
    )  # fmt: skip
    cell: Any = SimpleNamespace(record=CellRecord(5, 5, "y = 1", [0, 1, 2]))
    return ActionRunner(cluster, cell, Sink())


def test_what_no_error_repeats_is_heard_also_where_no_notice_is_shown() -> None:
    quiet, heard = runner(), list[str]()
    with pytest.warns(ClusterWarning, match="^Ranks differ.$"):
        quiet.do(actions.Notice(Warned("Ranks differ.\n")))
    quiet.do(actions.Notice(Alarm("It failed.\n")))  # pytest makes an error of a warning
    assert quiet.warned is None
    quiet.do(actions.Notice(Warned("Ranks differ.\n")))
    assert str(quiet.warned) == "Ranks differ."
    quiet.on_notice = heard.append
    quiet.do(actions.Notice(Warned("Ranks differ.\n")))
    assert heard == ["Ranks differ.\n"]


def test_other_cells_are_taken_back_newest_first_and_each_is_called_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    came = {
        4: Undone(refused=ALREADY_UNDONE),
        3: Undone(back=("a",)),
        2: Undone(refused="all of its ranks have died"),
        1: Undone(lost=("w",), made=("v",)),
    }

    def undo(world: Any, seq: int, number: int, how: Any, *rest: Any) -> Undone:
        asked.append((seq, number, how))
        return came[seq]

    monkeypatch.setattr(undoing, "_undo_in_turn", undo)
    heard: list[Any] = []
    on = runner(hear_undo=lambda seq, in_doubt: heard.append((seq, sorted(in_doubt))))
    took = on.do(actions.TakeBackOthers({1: None, 3: 7, 4: 8, 2: 9}))
    how = actions.Undo((0, 1), True)
    assert asked == [(seq, n, how) for seq, n in ((4, 8), (3, 7), (2, 9), (1, 0))]
    assert took.lines == (
        "Cell [7] is undone. Restored a.",
        "What cell [9] of another notebook changed is not undone: all of its ranks have died.",
        "A cell of another notebook is undone. Removed v. Lost, since donated or deleted: w.",
    )
    assert [seq for seq, _ in heard if seq != 4] == [3, 1]
    assert (1, ["w"]) in heard


def test_ranks_that_were_ended_as_was_wanted_are_dead_too_and_others_as_they_died() -> None:
    ended, killed = Death(RESTARTED), Death("killed by SIGKILL")
    link = SimpleNamespace(ranks=[0, 1], dead={0: ended, 1: ended})
    known: dict[str, Any] = {}
    for key in ("last_launches", "counts", "hosts", "unreachable"):
        known[key] = {}
    on = runner(
        link=link, dead={1: killed}, pending_launches=[], divergence=None, is_over=True, **known
    )
    assert on.do(actions.LookAround()).dead == {0: ended, 1: killed}
