"""The views as widgets. JupyterLab and Notebook 7 were tried; VS Code only without a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import msgspec
import traitlets

from jaxcluster.errors import JaxClusterError
from jaxcluster.views.displays import Bundle
from jaxcluster.views.messages import SHARDS_MIME, Question

FOLDER = Path(__file__).parents[1] / "static" / "shardview"

# The only form in which these modules import names.
IMPORT = re.compile(r"^(?:import|export) \{[^}]*\} from '\./(?P<file>\w+\.js)';\n", re.MULTILINE)


def script(file: str = "widget.js", entered: set[str] | None = None) -> str:
    """One ES module of a file and all that it imports, each before what imports it.

    anywidget takes the text of one module, and knows no folder to import others from. No two of
    them have a name in common, so nothing but the imports need go.

    Args:
      entered: the files that are there already.
    """
    entered = set() if entered is None else entered
    if file in entered:
        return ""
    entered.add(file)
    text = (FOLDER / file).read_text(encoding="utf-8")
    before = (script(found["file"], entered) for found in IMPORT.finditer(text))
    return "\n".join([*filter(None, before), IMPORT.sub("", text)])


class ShardWidget(anywidget.AnyWidget):
    """Draws a document, and asks the ranks for statistics and values when they are wanted.

    Questions are custom messages ``{"id": n, "op": ...}``. The answer has the same id, and a
    ``result`` or an ``error``, which is a text.
    """

    _esm = script()
    _css = (FOLDER / "style.css").read_text(encoding="utf-8")
    document = traitlets.Dict().tag(sync=True)
    live = traitlets.Bool(True).tag(sync=True)

    def __init__(self, view: Bundle, answer: Callable[[Question], Any]) -> None:
        super().__init__(document=view[SHARDS_MIME])
        self._answer = answer
        self.on_msg(self._on_question)

    def _on_question(self, widget: Any, question: Any, buffers: Any) -> None:
        reply: dict[str, Any] = {"id": question.get("id")}
        try:
            reply["result"] = self._answer(msgspec.convert(question, Question))
        except (JaxClusterError, ValueError) as error:  # it may lack something
            reply["error"] = str(error)
        self.send(reply)
