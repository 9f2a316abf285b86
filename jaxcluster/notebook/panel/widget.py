"""The sidebar in a cell's output, as a widget: for pages that don't have the Lab extension.

It is one more page of the panel. The view is a trait, so it is saved with the notebook and needs no
kernel. Requests are custom messages, as on the rpc comm. A page sends nothing unasked, so a closed
page is not noticed. The ranks are still asked, which an idle kernel does not show.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import msgspec
import traitlets

from jaxcluster.errors import UsageError
from jaxcluster.views.messages import Answer, Heard, Request

BUILT = Path(__file__).parents[2] / "static" / "sidebar"  # by labextension/widget.mjs
TOO_LATE = "The kernel ran a cell meanwhile. Click again."


def _built(file: str) -> str:
    """A file of the build.

    Raises:
      UsageError: this installation was made without Node.
    """
    try:
        return (BUILT / file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            "This installation has no sidebar: Node was missing when it was built.",
            "Install Node 20 or newer, then jaxcluster again. Without it: %jaxcluster status",
        ) from None


class SidebarWidget(anywidget.AnyWidget):
    """Shows the state, and passes on what its pages ask.

    Args:
      ask: given each request, on whichever thread has received it.
    """

    _esm = _built("widget.js")
    _css = _built("widget.css")
    state = traitlets.Dict().tag(sync=True)

    def __init__(self, ask: Callable[[Request], None]) -> None:
        self._ask = ask
        super().__init__()
        self.on_msg(self._on_request)

    def _on_request(self, widget: Any, request: Any, buffers: Any) -> None:
        asked = msgspec.convert(request, Request)
        if time.time_ns() / 1e6 > asked.until:  # it waited for a cell's end
            self.send(msgspec.to_builtins(Answer(asked.id, error=TOO_LATE)))
            return
        self.send(msgspec.to_builtins(Heard(asked.id)))
        self._ask(asked)
