"""Which names a dead rank's successor may take from a survivor."""

from __future__ import annotations

from jaxcluster.rebuild import Rebuilt, _shared_names


def saved(digests, spanning=(), common=()):
    return {
        "kept": sorted(digests),
        "digests": digests,
        "spanning": {name: [] for name in spanning},
        "common": list(common),
    }


def test_names_with_equal_values_on_all_survivors_are_shared():
    reports = {0: saved({"history": "a", "rank": "0"}), 2: saved({"history": "a", "rank": "2"})}
    assert _shared_names(reports) == (["history"], ["rank"])


def test_a_name_that_only_some_survivors_have_is_nobody_elses():
    reports = {0: saved({"x": "a", "mine": "b"}), 1: saved({"x": "a"})}
    assert _shared_names(reports) == (["x"], [])


def test_a_single_survivor_shares_only_what_spans_processes_or_is_no_ranks_own():
    reports = {0: saved({"w": "a", "rank": "0", "np": "c"}, spanning=["w"], common=["np"])}
    assert _shared_names(reports) == (["np", "w"], ["rank"])


def test_the_line_names_what_came_back_and_what_did_not():
    line = str(Rebuilt(("a", "b"), {"g": "its only copy died with the rank"}, (2,), 1.24))
    assert line == (
        "New processes after 1.2 s, rank 2 replaced: 2 variables kept. "
        "Lost: g (its only copy died with the rank)."
    )


def test_the_line_says_so_when_no_rank_lived():
    line = str(Rebuilt((), {}, (0, 1), 0.5, nothing_lived=True))
    assert line == "New processes after 0.5 s: no rank lived, so all variables are lost."
