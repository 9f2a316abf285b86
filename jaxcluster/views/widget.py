"""The views as widgets. JupyterLab and Notebook 7 were tried; VS Code only without a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from jaxcluster.errors import JaxClusterError

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


def style() -> str:
    """The views' style sheet."""
    return (FOLDER / "style.css").read_text(encoding="utf-8")


class ShardWidget(anywidget.AnyWidget):
    """Draws a document, and asks the ranks for statistics and values when they are wanted.

    Questions are custom messages ``{"id": n, "op": ...}``; the answer has the same id, and a
    ``result`` or an ``error``, which is a text.
    """

    _esm = script()
    _css = style()
    document = traitlets.Dict().tag(sync=True)
    live = traitlets.Bool(False).tag(sync=True)

    def __init__(
        self,
        document: Mapping[str, Any],
        html: str = "",
        answer: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(document=dict(document), live=answer is not None)
        self._html = html
        self._answer = answer
        self.on_msg(self._on_question)

    def _on_question(self, widget: Any, question: Any, buffers: Any) -> None:
        if self._answer is None or not isinstance(question, dict) or "op" not in question:
            return
        reply: dict[str, Any] = {"id": question.get("id")}
        try:
            reply["result"] = self._answer(question)
        except JaxClusterError as error:
            reply["error"] = str(error)
        except (KeyError, TypeError, ValueError) as error:
            reply["error"] = f"not understood: {type(error).__name__}: {error}"
        self.send(reply)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        # What remains of it in a saved notebook that knows no widgets.
        return ({**data, "text/html": self._html} if self._html else data), metadata
