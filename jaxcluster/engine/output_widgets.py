"""What an ``ipywidgets.Output`` shows: the output of a rank's code inside of ``with output:``.

In a plain notebook the page fills an ``Output`` with what the kernel sends meanwhile. A rank's
output comes to the page under another cell's name, or not at all. So the rank gathers it, and sets
the widget's ``outputs``, on every rank, in a cell, a callback and a thread alike.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

LATEST_S = 0.1  # that output waits to be shown, while more comes
KEPT_CHARS = 1_000_000  # of printed text: all of it is sent each time

Said = tuple[str, dict[str, Any]]  # an output as ``RankOutput`` has it, or an ``error``


def widget_of(comm: Any) -> Any:
    """The widget that hears what the page says on a comm; None if there is none."""
    return getattr(getattr(comm, "_msg_callback", None), "__self__", None)


class Captured:
    """Gathers what one ``Output`` shows.

    Args:
      comm: the widget's.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._new: list[Said] = []
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._showing = threading.RLock()

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """There is more output: it is shown in a moment."""
        with self._lock:
            self._new.append((kind, content))
            if self._timer is None:
                self._timer = threading.Timer(LATEST_S, self.show)
                self._timer.name, self._timer.daemon = "jaxcluster-output", True
                self._timer.start()

    def show(self) -> None:
        """Show what there is: at the end, or on a thread of its own while more may come."""
        with self._showing:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                new, self._new = self._new, []
                if new and new[-1] == ("clear_output", {"wait": True}):
                    self._new.append(new.pop())  # it waits for the next output
            if new and (widget := widget_of(self._comm)) is not None:
                widget.outputs = tuple(merge(widget.outputs, new))


def merge(outputs: Sequence[dict[str, Any]], new: Sequence[Said]) -> list[dict[str, Any]]:
    """Outputs in nbformat's form, and what was put out after them."""
    made, clear_first = list(outputs), False
    for kind, content in new:
        if kind == "clear_output":
            clear_first = bool(content.get("wait"))
            made = made if clear_first else []
            continue
        if kind == "update_display_data":
            made = [_updated(one, content) for one in made]
            continue
        if clear_first:
            made, clear_first = [], False
        if kind == "stream":
            _print(made, content["name"], content["text"])
        elif kind == "error":
            made.append({"output_type": "error", **content})
        else:  # a widget's view has no Out[n]
            shown = {"data": content["data"], "metadata": content.get("metadata") or {}}
            made.append({"output_type": "display_data", **shown, **_id(content)})
    return made


def _id(content: dict[str, Any]) -> dict[str, Any]:
    id = (content.get("transient") or {}).get("display_id")
    return {} if id is None else {"transient": {"display_id": id}}


def _updated(output: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    if not (id := _id(content)) or _id(output) != id:
        return output
    return output | {"data": content["data"], "metadata": content.get("metadata") or {}}


def _print(outputs: list[dict[str, Any]], name: str, text: str) -> None:
    last = outputs[-1] if outputs else {}
    if last.get("output_type") == "stream" and last.get("name") == name:
        text = outputs.pop()["text"] + text
    if "\r" in text:
        text = overwritten(text)
    if len(text) > KEPT_CHARS:
        text = f"[... earlier text is not kept ...]\n{text[-KEPT_CHARS:]}"
    outputs.append({"output_type": "stream", "name": name, "text": text})


def overwritten(text: str) -> str:
    """Text without what carriage returns have overwritten, as a terminal shows it."""
    lines = []
    for line in text.split("\n"):
        body = line.removesuffix("\r")
        lines.append(body.rpartition("\r")[2] + line[len(body) :])
    return "\n".join(lines)
