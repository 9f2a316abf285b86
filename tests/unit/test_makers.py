"""Which cells made a variable that is lost."""

from __future__ import annotations

import pytest

from jaxcluster.model import makers


def known(*sources: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for cell, source in enumerate(sources, 1):
        found = makers.after(found, source, cell)
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
    assert makers.tell(made, ["x"]) == "cells [1], [3]"
    assert makers.tell(made, ["y", "z"]) == "cell [2]"
    assert makers.tell(made, ["x", "y", "unknown"]) == "cells [1], [2], [3]"
    assert makers.tell(made, ["unknown"]) == ""


def test_many_cells_are_not_told() -> None:
    made = known("x = 1", *["x = f(x)"] * makers.MOST_CELLS)
    assert makers.tell(made, ["x"]) == ""
