"""Where a launch is made, as messages tell it."""

from __future__ import annotations

import linecache
import sys

from jaxcluster.agreement.refusals import Place
from jaxcluster.rank.places import Places

FRAME = "import sys\nframe = sys._getframe()"


def place(code: str, line: int = 2) -> Place:
    """That of a line of a cell, which has this text."""
    name = "/tmp/ipykernel_1/cell.py"
    linecache.cache[name] = len(code), None, f"\n{code}\n".splitlines(True), name
    names: dict[str, object] = {}
    exec(compile("\n" * (line - 2) + FRAME, name, "exec"), names)
    frame = names["frame"]
    assert isinstance(frame, type(sys._getframe()))
    return Places({name: 4}.get).of(frame)


def test_a_line_is_shown_as_it_was_typed() -> None:
    assert place("total = x.sum()") == Place(4, 2, "total = x.sum()", "")
    assert place("y = " + "a" * 90) == Place(4, 2, "y = " + "a" * 76, "")
    assert place(r"get_ipython().run_line_magic('run', 'it\'s.py -n')").text == "%run it's.py -n"
