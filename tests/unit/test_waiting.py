"""The line that says what a cell waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxcluster import wire
from jaxcluster.agreement.messages import Looked, Place, Waiting
from jaxcluster.job.process import describe
from jaxcluster.model.waiting import line


def state(rank: int, **more: Any) -> tuple[int, wire.RankState]:
    told = {"state": "running", "line": 3, "seconds": 6.0, **more}
    return rank, wire.RankState(rank, **told)


def waiting(rank: int, missing: list[int], seq: int = 7) -> Waiting:
    place = Place(4, 2, "total(x)", "")
    return Waiting(rank, "", seq, "jit(sum)", place, since=10.0, missing=missing)


def test_who_waits_for_whom_is_told_with_what_those_do() -> None:
    looked = Looked(12.0, [waiting(0, [1]), waiting(2, [1]), waiting(3, [4], seq=8)])
    told = line(7, dict([state(0), state(1), state(2)]), [], looked, {})
    assert told == (
        "Ranks 0, 2 have waited 2 s for rank 1 (line 2, jit(sum)); rank 1 is at work in line 3."
    )


def test_a_script_names_threads_that_wait_if_no_main_thread_does() -> None:
    thread = replace(waiting(0, [1], seq=0), lane="loader 1")
    told = "Rank 0 has waited 2 s for rank 1 (line 2, jit(sum))."
    assert describe(Looked(12.0, [thread])) == told
    assert describe(Looked(12.0)) == "No rank waits for another rank."


def test_a_long_launch_and_who_is_at_work_alone_are_told_after_a_while() -> None:
    nobody = Looked(12.0, [])
    assert line(7, dict([state(0), state(1)]), [], nobody, {}) == ""
    launch = dict([state(0, launching="jit(fit)", launching_s=8.0)])
    assert line(7, launch, [], None, {}) == "Rank 0: in jit(fit) for 8 s."
    told = line(7, dict([state(1)]), [], nobody, {}, have_ended=True)
    assert told == "Rank 1 is at work in line 3 (6 s); the other ranks have ended the cell."
    assert line(7, dict([state(1, seconds=2.0)]), [], nobody, {}, have_ended=True) == ""


def test_why_ranks_are_silent_comes_first() -> None:
    looked = Looked(12.0, [waiting(0, [1])])
    told = line(7, dict([state(0)]), ["Rank 1 was stopped by a signal."], looked, {})
    assert told.startswith("Rank 1 was stopped by a signal; rank 0 has waited 2 s for rank 1 (")
