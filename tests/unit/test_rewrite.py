"""A cell's source before it is sent: its line numbers, its syntax, its names, and auto mode."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jaxcluster.errors import CellSyntaxError
from jaxcluster.model.rewrite import (
    AutoMode,
    check_syntax,
    stays_in_notebook,
    with_all_lines,
    with_magic_line,
)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteractiveShell]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns of another one than its own
        made = InteractiveShell.instance()  # the one that get_ipython() finds
        made.history_manager.enabled = False
        yield made
        made.history_manager.end_session()
        made.restore_sys_module_state()
        InteractiveShell.clear_instance()


# --------------------------------------------------------------------------- line numbers


def test_the_magic_line_becomes_a_comment_so_that_line_numbers_are_the_notebooks() -> None:
    assert with_magic_line("--ranks 1", "a\nb") == "# %%spmd --ranks 1\na\nb"


@pytest.mark.parametrize("body", ["%%bash\nls", "\n  %%writefile a.py\nf()", "%%time\n%%bash\nls"])
def test_a_cell_magic_of_the_ranks_keeps_the_first_line(body: str) -> None:
    assert with_magic_line("--all", body) == body == with_all_lines(body)


@pytest.mark.parametrize("magics", ["%%time\n", "\n\n  %%time -n 3\n", "\n%%capture c\n%%prun\n"])
def test_one_whose_body_is_python_leaves_each_line_of_it_where_it_is(magics: str) -> None:
    sent = with_all_lines(with_magic_line("--all", f"{magics}f()\n\ng()"))
    assert sent.lstrip().startswith("%%")
    assert sent.splitlines().index("g()") == f"%%spmd\n{magics}f()\n\ng()".splitlines().index("g()")


def test_a_pasted_cell_may_be_indented_as_a_local_one(shell: InteractiveShell) -> None:
    source = with_magic_line("", "\n    x = 1\n    if x:\n        y = 2\n")
    check_syntax(shell, source)
    assert shell.transform_cell(source) == "# %%spmd\n\nx = 1\nif x:\n    y = 2\n"


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


# --------------------------------------------------------------------------- syntax


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\nx",
        "%time f()\n!ls\nx = !ls\nx?\n?y",
        "await f()\nasync with a: pass\n[i async for i in f()]",
        "%%time\nx = 1",
        "%%timeit -n 3\nx = 1",
        "%%writefile a.py\ndef f(:",
        "%%bash\nif (",
        "",
        "# only a comment",
    ],
)
def test_what_a_local_cell_may_say_is_fine(shell: InteractiveShell, source: str) -> None:
    check_syntax(shell, source)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("# %%spmd\ndef f(:\n", 2),
        ("# %%spmd\nx = 1\nx = = 1", 3),
        ("# %%spmd\nif 1:\nx = 2", 3),
        ("# %%spmd\nreturn 3", 2),
        ("# %%spmd\nfor i in x:\n    pass\nbreak", 4),
        ("# %%spmd\nf(a=1, a=2)", 2),
        ("# %%spmd\ns = '''never ended", 2),
        ("%%time\ndef f(:", 2),
    ],
)
def test_a_syntax_error_is_found_and_shown_with_its_line(
    shell: InteractiveShell, source: str, line: int
) -> None:
    with pytest.raises(CellSyntaxError) as caught:
        check_syntax(shell, source)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(caught.value._render_traceback_()))
    assert re.search(rf"Cell In\[\d+\], line {line}\b", shown), shown
    assert source.splitlines()[line - 1].strip() in shown
    assert "Error" in str(caught.value)


def test_warnings_are_left_to_the_ranks(shell: InteractiveShell) -> None:
    check_syntax(shell, r"x = '\d'")  # a SyntaxWarning: an error, did we let it pass


def test_what_the_compiler_can_not_take_is_refused_here(shell: InteractiveShell) -> None:
    with pytest.raises(CellSyntaxError, match="nested too deeply for Python") as caught:
        check_syntax(shell, "x = (0\n" + "+ 1\n" * 200_000 + ")")
    assert caught.value.hint == "Split it into several statements, or use a loop or a list."
    check_syntax(shell, "x = 0\n" * 20_000)


# --------------------------------------------------------------------------- auto mode


# Also read by the tests of the Lab extension, which writes %%spmd into the cells.
AUTO = json.loads((Path(__file__).parents[1] / "golden" / "auto.json").read_text())


@pytest.mark.parametrize(("cell", "place"), AUTO)
def test_code_goes_to_the_ranks_and_magics_stay_in_the_notebook(cell: str, place: str) -> None:
    assert stays_in_notebook(cell.splitlines()) == (place == "notebook")


def test_auto_mode_makes_a_cell_an_spmd_cell(shell: InteractiveShell) -> None:
    silent = [False]  # whether a frontend runs a line of its own, such as its debugger's
    auto = AutoMode(is_silent=lambda: silent[0])
    lines = ["x = 1\n", "x\n"]
    assert auto.transform(lines) == lines
    auto.on = True
    assert auto.transform(lines) == ["%%spmd --no-magic-line\n", "x = 1\n", "x\n"]
    assert auto.transform(["%pwd\n"]) == ["%pwd\n"]
    silent[0] = True
    assert auto.transform(lines) == lines
    silent[0] = False
    shell.input_transformers_cleanup.insert(0, auto.transform)
    try:
        with pytest.raises(CellSyntaxError):
            check_syntax(shell, "def f(:")
        assert auto.on
    finally:
        shell.input_transformers_cleanup.remove(auto.transform)
