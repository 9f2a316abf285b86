"""What a notebook knows of a rank's names and values by what the rank has told."""

from __future__ import annotations

from jaxcluster import wire
from jaxcluster.model.last_known import LastKnown


def changes(bound=(), gone=(), **values: str) -> wire.NameChanges:
    return wire.NameChanges([*bound, *values], list(gone), False, values)


def told() -> LastKnown:
    found = LastKnown()
    found.hear(1, wire.NameChanges(["x", "y"], [], True, {"x": "=1", "y": ""}))
    return found


def test_what_is_not_known_is_not_told_as_known() -> None:
    assert told().names == {"x", "y"}
    assert told().known() == {"x": "=1"}


def test_a_value_is_known_since_the_cell_that_made_it_so() -> None:
    found = told()
    found.hear(2, changes(z="=2"))
    assert found.known() == {"x": "=1", "z": "=2"}
    assert found.known(until=1) == {"x": "=1"}


def test_a_name_that_is_gone_has_no_value() -> None:
    found = told()
    found.hear(2, changes(gone=["x"]))
    assert (found.names, found.known()) == ({"y"}, {})


def test_an_undone_cell_leaves_what_was_known_before_it() -> None:
    found = told()
    found.hear(2, changes(["made"], ["y"], x="=2", new="=3"))
    found.undo(2, [])
    assert (found.names, found.known()) == ({"x", "y"}, {"x": "=1"})
    assert found.known(until=1) == {"x": "=1"}


def test_a_cell_that_a_rank_did_not_end_has_told_nothing_that_could_be_undone() -> None:
    found = told()
    found.undo(2, [])
    assert (found.names, found.known()) == ({"x", "y"}, {"x": "=1"})


def test_what_may_not_have_been_put_back_is_not_known() -> None:
    found = told()
    found.hear(2, changes(x="=2"))
    found.undo(2, ["x"])
    assert found.known() == {}


def test_a_push_stays_when_the_cell_before_it_is_undone() -> None:
    found = told()
    found.hear(2, changes(x="=2"))
    found.hear_bound({"x": "=5", "p": "=6"})
    found.undo(2, [])
    assert found.known() == {"x": "=5", "p": "=6"}
    assert found.names == {"x", "y", "p"}


def test_a_rank_that_begins_again_has_nothing_else() -> None:
    found = told()
    found.hear(2, wire.NameChanges(["z"], [], True, {"z": "=1"}))
    assert (found.names, found.known()) == ({"z"}, {"z": "=1"})


def test_what_is_told_again_is_known_since_it_was_told_first() -> None:
    """As in the first cell after a restore, also where that is undone."""
    found = told()
    found.hear_bound({"x": "=3"})
    found.hear(2, wire.NameChanges(["x", "y", "z"], [], True, {"x": "=3", "y": "=4", "z": "=5"}))
    assert found.known(until=1) == {"x": "=3"}
    assert found.known() == {"x": "=3", "y": "=4", "z": "=5"}
    found.undo(2, [])
    assert found.known() == {"x": "=3"}


def test_what_was_there_before_a_first_cell_stays_when_that_is_undone() -> None:
    """Another notebook may have made it: a first reply names all that is there."""
    told = LastKnown()
    told.hear(3, wire.NameChanges(["old", "new"], [], True, {"old": "=1", "new": "=2"}))
    told.undo(3, [])
    assert "old" in told.names


def test_cells_that_are_heard_of_late_take_nothing_back() -> None:
    """Each of some queued cells is heard of when somebody waits for it."""
    told = LastKnown()
    told.hear(3, wire.NameChanges(["a", "b"], ["c"], False, {"a": "=3", "b": "=3"}))
    told.hear(1, wire.NameChanges(["a", "c", "d"], [], True, {"a": "=1", "c": "=1", "d": "=1"}))
    assert told.names == {"a", "b", "d"}
    assert told.known() == {"a": "=3", "b": "=3", "d": "=1"}
    told.undo(3, [])
    assert told.known()["a"] == "=1"


def test_what_something_else_may_have_changed_is_known_again_once_all_is_told() -> None:
    found = told()
    found.spoil()
    assert (found.known(), found.is_spoiled) == ({}, True)
    found.hear(found.seq, wire.NameChanges(["x"], [], True, {"x": "=9"}))
    assert (found.known(), found.is_spoiled) == ({"x": "=9"}, False)
