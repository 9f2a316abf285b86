"""``static/shardview``, the modules that draw the views, as the one that a widget can have."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "static" / "shardview"

# The only form in which these modules import names; tests/unit/test_drawing.py sees to it.
IMPORT = re.compile(r"^(?:import|export) \{[^}]*\} from '\./(?P<file>\w+\.js)';\n", re.MULTILINE)


def script(entry: str = "widget.js") -> str:
    """One ES module of ``entry`` and all that it imports, each before what imports it.

    anywidget takes the text of one module, and knows no folder to import others from. No two of
    them have a name in common, so nothing but the imports need go.
    """
    texts: dict[str, str] = {}
    entered = set()

    def add(file: str) -> None:
        if file in entered:
            return
        entered.add(file)
        text = (FOLDER / file).read_text(encoding="utf-8")
        for found in IMPORT.finditer(text):
            add(found["file"])
        texts[file] = IMPORT.sub("", text)

    add(entry)
    return "\n".join(texts.values())


def style() -> str:
    """The views' style sheet."""
    return (FOLDER / "style.css").read_text(encoding="utf-8")
