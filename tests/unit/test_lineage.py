"""Which cells made a variable that is lost."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

from jaxcluster.model import lineage


def known(*sources: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for cell, source in enumerate(sources, 1):
        found = lineage.after(found, source, cell)
    return found


@pytest.mark.parametrize(
    ("sources", "cells"),
    [
        (["x = 1"], (1,)),
        (["x = 1", "x = 2"], (2,)),
        (["x = 1", "y = x"], (1,)),
        (["x = 1", "x = f(x)"], (1, 2)),
        (["x = 1", "x += 1"], (1, 2)),
        (["x = 1", "x = 2\nx += 1"], (2,)),
        (["x = 1", "print(x)\nx = 3"], (1, 2)),
        (["import numpy as x"], (1,)),
        (["def x():\n    y = 1"], (1,)),
        (["for x in range(3):\n    pass"], (1,)),
    ],
)
def test_a_name_needs_the_cell_that_bound_it_and_those_that_changed_it(
    sources: list[str], cells: tuple[int, ...]
) -> None:
    assert known(*sources)["x"] == cells


def test_nothing_is_known_of_names_in_what_cannot_be_parsed() -> None:
    assert known("x = 1\ny = 2", "%time x = 2") == {"y": (1,)}
    assert known("x = 1", "%time x = 2", "x = 3") == {"x": (3,)}


def test_what_a_function_binds_inside_is_no_variable() -> None:
    assert "y" not in known("def x():\n    y = 1")


def test_the_cells_are_told_once_each() -> None:
    made = known("x = 1", "y = 2\nz = 3", "x = f(x)")
    assert lineage.tell(made, ["x"]) == "cells [1], [3]"
    assert lineage.tell(made, ["y", "z"]) == "cell [2]"
    assert lineage.tell(made, ["x", "y", "unknown"]) == "cells [1], [2], [3]"
    assert lineage.tell(made, ["unknown"]) == ""


def test_many_cells_are_not_told() -> None:
    made = known("x = 1", *["x = f(x)"] * lineage.MOST_CELLS)
    assert lineage.tell(made, ["x"]) == ""


def test_a_cell_that_fails_again_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(source: str) -> ast.Module:
        parsed.append(source)
        return ast.parse(source)

    monkeypatch.setattr(lineage, "ast", SimpleNamespace(**{**vars(ast), "parse": parse}))
    for _ in range(3):
        assert lineage.before({"y": (1,), "z": (2,)}, "y = fails(again)") == {"z": (2,)}
    assert parsed == ["y = fails(again)"]


def session(*cells: tuple[str, bool]) -> lineage.Lineage:
    """A notebook whose cells were sent and have ended, whole or not."""
    made = lineage.Lineage()
    for seq, (source, is_whole) in enumerate(cells, 1):
        made.sent(seq)
        made.ended(seq, source, seq, is_whole=is_whole)
    return made


def test_a_cell_that_was_taken_back_has_made_nothing() -> None:
    made = session(("x = 1; z = 1", True), ("x = y = 2", True))
    assert made.known(2) == {"x": (2,), "y": (2,), "z": (1,)}
    made.undone(2, ["z"])  # which may have been changed in place
    assert made.known(2) == {"x": (1,)}
    made.undone(2, [])
    assert made.known(2) == {"x": (1,)}


def test_what_a_cell_was_to_bind_that_failed_is_not_known() -> None:
    made = session(("x = y = z = 1", True), ("x = 2\n1 / 0\ny += 1", False))
    assert made.known(2) == {"z": (1,)}
    made.undone(2, [])
    assert made.known(2) == dict.fromkeys("xyz", (1,))
    assert session(("x = y = 1", True), ("%time x = 2", False)).known(2) == {"y": (1,)}


def test_a_pushed_value_was_made_by_no_cell() -> None:
    made = session(("x = y = 1", True), ("y = 2", True))
    made.bound(["x"])
    assert made.known(2) == {"y": (2,)}
    made.undone(2, [])
    assert made.known(2) == {"y": (1,)}  # what was pushed stays


def test_of_what_another_notebook_may_have_bound_nothing_is_said() -> None:
    made = session(("x = 1", True))
    assert made.known(2) == {}
    made.sent(3)
    made.ended(3, "y = 1", 2, is_whole=True)
    assert made.known(3) == {"y": (2,)}


def test_cells_that_end_in_another_order_are_not_taken_for_each_other() -> None:
    made = session(("x = 1", True))
    for seq in (2, 3):
        made.sent(seq)
    for seq in (3, 2):
        made.ended(seq, f"x = {seq}", seq, is_whole=True)
    made.undone(3, [])
    assert made.known(3) == {}
