"""IPython's own syntax as Python whose lines have the same numbers."""

from __future__ import annotations

import ast

import pytest

from jaxcluster.model.plainly import as_python


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("%%time", ""),
        ("%%timeit -n 3", ""),
        ("%%capture out", ""),
        ("%matplotlib inline", "pass"),
        ("    !ls *.py", "    pass"),
        ("?print", "pass"),
        ("jnp.sum?", "pass"),
        ("%time x = total(ones)", "x = total(ones)"),
        ("  %timeit -n 3 -r 2 total(ones)", "  total(ones)"),
        ("%time -1", "pass"),
        ("files = !ls", "files = None"),
        ("a, b = %sql select", "a, b = None"),
        ("x = y != z", "x = y != z"),
        ("x = y % z", "x = y % z"),
        ("x == '%d' % 3", "x == '%d' % 3"),
        ("total(ones)  # %time", "total(ones)  # %time"),
    ],
)
def test_each_line_becomes_a_statement(line: str, python: str) -> None:
    assert as_python(line) == python
    assert as_python(f"x = 1\n{line}\ny = 2").splitlines()[::2] == ["x = 1", "y = 2"]


def test_a_cell_with_all_of_it_is_parsed() -> None:
    source = (
        "%%time\n%load_ext autoreload\nfor i in range(3):\n    !true\n    n = !ls\n    f(i)\nf?"
    )
    loop = ast.parse(as_python(source)).body[1]
    assert isinstance(loop, ast.For)
    assert (loop.lineno, loop.end_lineno) == (3, 6)


def test_what_is_not_python_stays_what_it_is() -> None:
    assert as_python("%%bash\necho hi").splitlines() == ["pass", "echo hi"]
    assert as_python("") == ""
