"""Where a launch is made, as messages tell it."""

from __future__ import annotations

import linecache
import sys

import pytest

from jaxcluster.agreement.refusals import Place
from jaxcluster.engine.places import Places

FRAME = "import sys\nframe = sys._getframe()"


def place(code: str, line: int = 2) -> Place:
    """That of a line of a cell, which has this text."""
    name = "/tmp/ipykernel_1/cell.py"
    linecache.cache[name] = len(code), None, f"\n{code}\n".splitlines(True), name
    names: dict[str, object] = {}
    exec(compile("\n" * (line - 2) + FRAME, name, "exec"), names)
    frame = names["frame"]
    assert isinstance(frame, type(sys._getframe()))
    return Places({name: 4}).of(frame)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("total = x.sum()", "total = x.sum()"),
        ("get_ipython().run_line_magic('run', 'train.py -n 3')", "%run train.py -n 3"),
        ("get_ipython().run_line_magic('run', 'it\\'s.py')", "%run it's.py"),
        ("get_ipython().run_line_magic('who', '')", "%who"),
        ("get_ipython().run_line_magic('run', '" + "a" * 90 + "')", "%run " + "a" * 75),
        ("get_ipython().run_line_magic('run', name)", "get_ipython().run_line_magic('run', name)"),
    ],
)
def test_a_line_is_shown_as_it_was_typed(code: str, shown: str) -> None:
    assert place(code) == Place(4, 2, shown, "")
