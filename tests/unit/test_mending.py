"""Builtins that a cell has broken come back; mostly there is nothing to do, at little cost."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import pytest

from jaxcluster.engine import mending


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = dict(builtins.__dict__)
    yield
    builtins.__dict__.update(before)
    for name in builtins.__dict__.keys() - before.keys():
        del builtins.__dict__[name]


class Looked(dict[str, Any]):
    """Says whether its names are gone through."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    made = Looked(mending._builtins)
    monkeypatch.setattr(mending, "_builtins", made)
    monkeypatch.setattr(mending, "_whole", ([], []))
    return made


def test_names_are_looked_up_only_where_something_has_changed(looked: Looked) -> None:
    mending.mend_builtins()
    for _ in range(5):
        mending.mend_builtins()
    assert looked.looks == 1
    builtins.__dict__["exit"] = builtins.__dict__.pop("exit")  # as IPython's trap does at each cell
    for _ in range(5):
        mending.mend_builtins()
    assert looked.looks == 2


@pytest.mark.parametrize("value", [None, 5, "gone"], ids=["None", "5", "gone"])
@pytest.mark.parametrize("name", ["len", "print", "OSError", "EnvironmentError", "__import__"])
def test_what_is_gone_or_can_not_be_called_comes_back(
    looked: Looked, name: str, value: Any
) -> None:
    was = builtins.__dict__[name]
    mending.mend_builtins()
    if value == "gone":
        del builtins.__dict__[name]
    else:
        builtins.__dict__[name] = value
    mending.mend_builtins()
    now = builtins.__dict__[name]
    assert now is was


def test_one_that_has_another_name_now_comes_back(looked: Looked) -> None:
    """The values are the same ones, in the same order."""
    name = list(builtins.__dict__)[-1]
    mending._builtins[name] = builtins.__dict__[name]
    mending.mend_builtins()
    builtins.__dict__["another"] = builtins.__dict__.pop(name)
    mending.mend_builtins()
    assert name in builtins.__dict__


def test_what_a_cell_puts_in_the_place_of_one_stays(looked: Looked) -> None:
    mending.mend_builtins()
    mine = builtins.__dict__["sorted"] = lambda *args: []
    for _ in range(3):
        mending.mend_builtins()
        assert builtins.sorted is mine
    assert looked.looks == 2


def test_a_value_is_not_compared_by_its_own_rules(looked: Looked) -> None:
    """They are a user's, and may take for ever."""

    class Odd:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("asked")

        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    mending.mend_builtins()
    builtins.__dict__["sorted"] = Odd()
    mending.mend_builtins()
    builtins.__dict__["sorted"] = Odd()
    mending.mend_builtins()
