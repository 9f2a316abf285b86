"""The style sheets of the Lab extension."""

from __future__ import annotations

from pathlib import Path

ALONE = "alone.css"  # for pages without the extension: it is part of another bundle


def test_every_style_sheet_of_the_lab_extension_is_loaded() -> None:
    folder = Path(__file__).parents[2] / "labextension" / "style"
    sheets = {path.name for path in folder.glob("*.css")} - {"index.css", ALONE}
    for index in ("index.js", "index.css"):
        text = (folder / index).read_text()
        assert {name for name in sheets if f"{name}'" in text} == sheets, index
