"""Which names come back on which ranks, from when, and what is said of those that don't."""

from __future__ import annotations

from typing import Any

from jaxcluster.cluster.restart import Restored, bound_names, plan, shared_names


def saved(digests, spanning=(), common=(), lost=None) -> dict[str, Any]:
    return {
        "kept": sorted(digests),
        "lost": lost or {},
        "digests": digests,
        "spanning": {name: [] for name in spanning},
        "common": list(common),
    }


def report(names=(), lost=None, before=(), before_lost=None, absent=(), **more) -> dict[str, Any]:
    """What a rank has saved: all names with one value on all ranks, unless ``more`` has digests."""
    digests = more.pop("digests", dict.fromkeys(names, "equal"))
    then = saved(dict.fromkeys(before, "older"), lost=before_lost)
    return {
        **saved(digests, lost=lost, **more),
        "before": {**then, "absent": list(absent)},
        "unbound": {},
    }


# --------------------------------------------------------------------------- a dead rank


def test_names_with_equal_values_on_all_survivors_are_shared():
    reports = {0: saved({"history": "a", "rank": "0"}), 2: saved({"history": "a", "rank": "2"})}
    assert shared_names(reports, {1: None}) == (["history"], ["rank"])


def test_a_name_that_only_some_survivors_have_is_nobody_elses():
    reports = {0: saved({"x": "a", "mine": "b"}), 1: saved({"x": "a"})}
    assert shared_names(reports, {2: None}) == (["x"], [])


def test_one_that_the_dead_rank_had_too_is_half_gone_and_so_lost():
    reports = {0: saved({"x": "a", "mine": "b"}), 1: saved({"x": "a"})}
    assert shared_names(reports, {2: {"x", "mine"}}) == (["x"], ["mine"])


def test_a_single_survivor_shares_only_what_spans_processes_or_is_no_ranks_own():
    reports = {0: saved({"w": "a", "rank": "0", "np": "c"}, spanning=["w"], common=["np"])}
    assert shared_names(reports, {1: None}) == (["np", "w"], ["rank"])


def test_what_only_the_dead_rank_had_is_named():
    found = plan({0: report("ab"), 1: report("ab")}, {2: {"a", "b", "only"}})
    assert found.lost == {"only": "only rank 2 had it, which died"}
    assert found.shared == {"a", "b"}


def test_no_dead_rank_is_named_for_what_another_one_may_have_had():
    """``if rank == 3: here = 5``, and the host of ranks 2 and 3 is lost while the cell runs."""
    found = plan({0: report("a"), 1: report("a")}, {2: {"a", "here"}, 3: {"a", "here"}})
    assert found.lost == {"here": "only ranks 2, 3 can have had it, which died"}


# --------------------------------------------------------------------------- all ranks alike


def test_a_name_that_one_rank_could_not_save_is_lost_on_all():
    found = plan({0: report("ab"), 1: report("a", lost={"b": "still being computed"})}, {})
    assert found.names == {"a"}
    assert found.lost == {"b": "still being computed"}


def test_what_is_still_being_computed_is_taken_from_before_the_cell_on_all_ranks():
    """Rank 0 has the new value, rank 1 waits for it, and rank 2 never got so far."""
    reports = {
        0: report(["params"], before=["params"]),
        1: report(lost={"params": "still being computed"}, before=["params"]),
        2: report(["params"]),
    }
    found = plan(reports, {})
    assert found.names == found.older == {"params"}
    assert found.lost == {}


def test_it_is_lost_where_a_rank_has_no_older_one_either():
    reports = {
        0: report(["params"], before_lost={"params": "deleted or donated"}),
        1: report(lost={"params": "still being computed"}, before=["params"]),
    }
    assert plan(reports, {}).lost == {"params": "still being computed"}


def test_a_rank_that_does_not_know_what_was_before_keeps_all_from_going_back():
    """Its newest value beside the others' older one would be silently wrong."""
    unknown = report(["params"])
    unknown["before"]["known"] = False
    reports = {
        0: unknown,
        1: report(lost={"params": "still being computed"}, before=["params"]),
    }
    for cell_is_undone in (False, True):
        found = plan(reports, {}, cell_is_undone)
        assert found.lost == {"params": "still being computed"}
        assert not found.older


def test_a_name_that_was_not_there_before_the_cell_is_lost():
    reports = {0: report(lost={"new": "still being computed"}, absent=["new"]), 1: report()}
    assert plan(reports, {}).lost == {"new": "still being computed"}
    undone = plan(reports, {}, cell_is_undone=True)
    assert undone.lost == {}
    assert undone.gone == {"new"}


def test_an_undone_cell_leaves_all_ranks_what_they_had_before_it():
    reports = {
        0: report(["params", "new", "old"], before=["params"], absent=["new"]),
        1: report(["params", "old"]),
    }
    found = plan(reports, {}, cell_is_undone=True)
    assert (found.names, found.older, found.gone) == ({"params", "old"}, {"params"}, {"new"})


def test_a_dead_ranks_successor_takes_the_value_from_before_the_cell_too():
    reports = {rank: report(["params"], before=["params"]) for rank in (0, 2)}
    reports[2]["digests"] = {"params": "another one"}  # it got no further than the cell's middle
    found = plan(reports, {1: {"params"}}, cell_is_undone=True)
    assert found.shared == found.older == {"params"}


# ------------------------------------------------------------------------- messages


def test_the_line_names_what_came_back_and_what_did_not():
    line = str(Restored(("a", "b"), {"g": "its only copy died with the rank"}, (2,), 1.24))
    assert line == (
        "New processes after 1.2 s, rank 2 replaced: 2 variables kept. "
        "Lost: g (its only copy died with the rank)."
    )


def test_all_lost_names_are_named():
    line = str(Restored((), {f"v{i:02}": "gone" for i in range(20)}))
    assert all(f"v{i:02} (gone)" in line.replace("\n ", "") for i in range(20))
    assert max(map(len, line.splitlines())) <= 100


def test_the_line_says_which_values_are_older():
    line = str(Restored(("p", "q"), seconds=1.0, older=("p",)))
    assert line == "New processes after 1.0 s: 2 variables kept. As before the cell: p."


def test_the_line_says_so_when_no_rank_lived():
    line = str(Restored((), {}, (0, 1), 0.5, nothing_lived=True))
    assert line == "New processes after 0.5 s: no rank lived, so all variables are lost."


def test_the_names_that_a_cell_binds_are_its_own_statements():
    source = """
import numpy as np, os.path
from a import b as c
def function(x): inner = 1
class Model: field = 2
first, *rest = [comprehension for comprehension in range(3)]
for step in range(3): total += step
with open('f') as file: walrus = (named := 1)
try: pass
except ValueError as error: handled = 1
match rest:
    case [head, *tail]: pass
"""
    names = "np os c function Model first rest step total file walrus named handled head tail"
    assert bound_names(source) == sorted(names.split())
    assert bound_names("%time x = 1 2") == []
