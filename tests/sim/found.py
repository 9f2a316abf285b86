"""Schedules that a wide search has found broken, shrunk: each shows one hole, which is mended.

They are in ``found.txt``: what a hole is called, and below it the schedule, as Python. Another one
is added there, indented, as its ``repr``. ``PYTHONPATH=.:tests python -m sim.found`` writes them
as they are written here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim import programs
from sim.programs import Program, Schedule

FILE = Path(__file__).with_name("found.txt")
HOLE = re.compile(r"^(\S.*)\n((?:    .*\n)+)", re.MULTILINE)


def read(text: str) -> dict[str, Schedule]:
    """The schedules in a text, by what their holes are called."""
    found = HOLE.findall(text)
    assert not HOLE.sub("", text), "Each hole is a line, with its schedule in indented ones."
    assert len(dict(found)) == len(found), "Two holes are called alike."
    return {hole: eval(schedule.strip(), vars(programs)) for hole, schedule in found}


def written(schedules: Mapping[str, Schedule]) -> str:
    """The text of schedules, a line for each program."""
    return "".join(f"{hole}\n    {_shown(one)}\n" for hole, one in schedules.items())


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_shown(one)}' for key, one in value.items())}}}"
    if isinstance(value, tuple) and value and isinstance(value[0], Program):
        return f"(\n        {f',{chr(10)}        '.join(map(_shown, value))},\n    )"
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(map(repr, sorted(value)))}}})"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    told = []
    for field in dataclasses.fields(value):
        one = getattr(value, field.name)
        if one != field.default:
            named = "" if field.default is dataclasses.MISSING else f"{field.name}="
            told.append(f"{named}{_shown(one)}")
    return f"{type(value).__name__}({', '.join(told)})"


FOUND = read(FILE.read_text())

if __name__ == "__main__":
    FILE.write_text(written(FOUND))
