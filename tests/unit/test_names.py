"""What a rank tells of its names with each reply."""

from __future__ import annotations

from jaxcluster import wire
from jaxcluster.engine.names import Names


def test_a_notebook_is_told_what_has_changed_since_it_was_told() -> None:
    names, namespace = Names(), {"a": 1}
    assert names.changes(b"one", namespace) == wire.NameChanges(["a"], [], True)
    namespace["b"] = 2
    assert names.changes(b"one", namespace) == wire.NameChanges(["b"], [], False)
    assert names.changes(b"two", namespace) == wire.NameChanges(["a", "b"], [], True)
    del namespace["a"]
    assert names.changes(b"one", namespace) == wire.NameChanges([], ["a"], False)


def test_a_notebook_that_knows_them_all_is_told_nothing() -> None:
    names = Names()
    assert names.changes(b"one", {}) == wire.NameChanges([], [], True)
    namespace = {"a": 1}
    names.changes(b"one", namespace)
    namespace["a"] = 2
    assert names.changes(b"one", namespace) is None
