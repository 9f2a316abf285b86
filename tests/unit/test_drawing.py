"""static/shardview as one module: what its modules must be like for that."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from jaxcluster.views import widget

MODULES = sorted(widget.FOLDER.glob("*.js"))
TOP = re.compile(r"^(?:export )?(?:const|let|function|async function|class) (.*)", re.MULTILINE)


def names(text: str) -> list[str]:
    """What stands at a module's top: also both of ``const a = 1, b = 2;``."""
    found = []
    for line in TOP.findall(text):
        head = re.match(r"\w+", line)
        assert head, line
        found.append(head[0])
        found += re.findall(r", (\w+) = ", line.partition("=>")[0])
    return found


def test_what_stands_at_the_tops_of_modules_has_one_name_in_all_of_them() -> None:
    counts = Counter(name for path in MODULES for name in names(path.read_text()))
    assert [name for name, times in counts.items() if times > 1] == []


def test_every_module_is_in_the_widgets_script_and_nothing_is_left_to_import() -> None:
    script = widget.script()
    for path in MODULES:
        for name in names(path.read_text()):
            assert re.search(rf"\b{name}\b", script), (path.name, name)
    assert re.findall(r"^import .*|^.* from '.*", script, re.MULTILINE) == []
    assert script.count("export default") == 1


ALONE = "alone.css"  # for pages without the extension: it is part of another bundle


def test_every_style_sheet_of_the_lab_extension_is_loaded() -> None:
    folder = Path(__file__).parents[2] / "labextension" / "style"
    sheets = {path.name for path in folder.glob("*.css")} - {"index.css", ALONE}
    for index in ("index.js", "index.css"):
        text = (folder / index).read_text()
        assert {name for name in sheets if f"{name}'" in text} == sheets, index
