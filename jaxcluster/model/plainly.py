"""A cell with IPython's own syntax as Python, line by line. Pure.

What is said of a cell's branches and loops needs its statements, with the numbers of their lines:
IPython's own rewriting puts a whole cell of ``%%time`` on one line.
"""

from __future__ import annotations

import re

# Their bodies are Python.
_CELL_MAGIC = re.compile(r"\s*%%(time|timeit|capture|prun|memray_flamegraph|mprun|lprun)\b.*")
_TIMED = re.compile(r"(\s*)%(?:time|timeit|prun)\s+(?:-\w+(?:\s*\d+)?\s+)*(?=[^\s-])")
_MAGIC = re.compile(r"(\s*)(?:[%!?].*|[\w.]+\?{1,2}\s*)")
_ASSIGNED = re.compile(r"(\s*[^=%!?#'\"]+=\s*)[%!][^=].*")


def as_python(source: str) -> str:
    """``source`` with each line of IPython's own syntax replaced by a statement."""
    lines = source.splitlines()
    if lines and _CELL_MAGIC.fullmatch(lines[0]):
        lines[0] = ""
    for number, line in enumerate(lines):
        if found := _TIMED.match(line):
            lines[number] = found[1] + line[found.end() :]
        elif found := _MAGIC.fullmatch(line):
            lines[number] = f"{found[1]}pass"
        elif found := _ASSIGNED.fullmatch(line):
            lines[number] = f"{found[1]}None"
    return "\n".join(lines)
