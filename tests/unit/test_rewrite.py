"""A cell's source before it is sent: its line numbers, and auto mode."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from jaxcluster.model.rewrite import (
    AutoMode,
    stays_in_notebook,
    with_all_lines,
    with_magic_line,
)

# --------------------------------------------------------------------------- line numbers


def test_the_magic_line_is_counted_so_that_line_numbers_are_the_notebooks() -> None:
    assert with_magic_line("a\nb") == "# %%spmd\na\nb"
    assert with_magic_line("") == "\n"


@pytest.mark.parametrize("body", ["%%bash\nls", "\n  %%writefile a.py\nf()", "%%time\n%%bash\nls"])
def test_a_cell_magic_of_the_ranks_keeps_the_first_line(body: str) -> None:
    assert with_magic_line(body) == body == with_all_lines(body)


@pytest.mark.parametrize("magics", ["%%time\n", "\n\n  %%time -n 3\n", "\n%%capture c\n%%prun\n"])
def test_one_whose_body_is_python_leaves_each_line_of_it_where_it_is(magics: str) -> None:
    sent = with_magic_line(f"{magics}f()\n\ng()")
    assert sent.lstrip().startswith("%%")
    assert sent.splitlines().index("g()") == f"%%spmd\n{magics}f()\n\ng()".splitlines().index("g()")


def test_a_pasted_cell_may_be_indented_as_a_local_one() -> None:
    source = with_magic_line("\n    x = 1\n    if x:\n        y = 2\n")
    assert TransformerManager().transform_cell(source) == "# %%spmd\n\nx = 1\nif x:\n    y = 2\n"


@pytest.mark.parametrize(
    ("source", "sent"),
    [
        ("\n\nx = 1\ny", "#\n\nx = 1\ny"),
        ("  \n    x = 1\n    y", "    #\n    x = 1\n    y"),
        ("x = 1\n\ny", "x = 1\n\ny"),
        ("\n%time x", "#\n%time x"),
        ("\n\n", "\n\n"),
    ],
)
def test_empty_first_lines_are_counted_by_the_ranks_too(source: str, sent: str) -> None:
    assert with_all_lines(source) == sent


# --------------------------------------------------------------------------- auto mode


# Also read by the tests of the Lab extension, which writes %%spmd into the cells.
AUTO = json.loads((Path(__file__).parents[1] / "golden" / "auto.json").read_text())


@pytest.mark.parametrize(("cell", "place"), AUTO)
def test_code_goes_to_the_ranks_and_magics_stay_in_the_notebook(cell: str, place: str) -> None:
    assert stays_in_notebook(cell.splitlines()) == (place == "notebook")


def test_auto_mode_makes_a_cell_an_spmd_cell() -> None:
    silent = [False]  # whether a frontend runs a line of its own, such as its debugger's
    auto = AutoMode(is_silent=lambda: silent[0])
    lines = ["x = 1\n", "x\n"]
    assert auto.transform(lines) == lines
    auto.on = True
    assert auto.transform(lines) == ["%%spmd --no-magic-line\n", "x = 1\n", "x\n"]
    assert auto.transform(["%pwd\n"]) == ["%pwd\n"]
    silent[0] = True
    assert auto.transform(lines) == lines
