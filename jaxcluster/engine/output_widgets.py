"""What an ``ipywidgets.Output`` shows: the outputs of a rank's code inside of ``with output:``.

In a notebook of its own it is the page that gives an ``Output`` what the kernel sends meanwhile.
A rank's output comes to the page under another cell's name, or not at all. So it is gathered here,
and told as the widget's ``outputs``, on whichever rank, in a cell, a callback and a thread alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

LATEST_S = 0.1  # that output waits to be shown, while more comes
KEPT_CHARS = 1_000_000  # of printed text: all of it is sent each time


class Captured:
    """The outputs of one ``Output``, in the form of nbformat.

    Args:
      on_change: given all of them when there are others to show, and whether these are the last; on
        the thread that puts them out, or, while that computes on, on another.

    Attributes:
      is_told: the widget is being told of them, and what it says then is known.
    """

    def __init__(self, on_change: Callable[[list[dict[str, Any]], bool], None]) -> None:
        self.outputs: list[dict[str, Any]] = []
        self.is_told = False
        self._on_change = on_change
        self._clear_first = False
        self._is_new = False  # since they were shown
        self._is_changed = False  # since it began
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """One output of the rank, as ``RankOutput`` has it, or an ``error``."""
        with self._lock:
            self._add(kind, content)
            self._is_new = self._is_changed = True
            if self._timer is None:
                self._timer = threading.Timer(LATEST_S, self.show)
                self._timer.name, self._timer.daemon = "jaxcluster-output", True
                self._timer.start()

    def show(self) -> None:
        """Tell of what is new, while there may come more."""
        with self._lock:
            self._timer = None
            if not self._is_new:
                return
            self._is_new = False
            outputs = list(self.outputs)
        self._on_change(outputs, False)

    def end(self) -> None:
        """Tell of all, where anything has come."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if not self._is_changed:
                return
            self._is_new = self._is_changed = False
            outputs = list(self.outputs)
        self._on_change(outputs, True)

    def _add(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "clear_output":
            self._clear_first = bool(content.get("wait"))
            if not self._clear_first:
                self.outputs = []
            return
        if kind == "update_display_data":
            self._update(content)
            return
        if self._clear_first:
            self._clear_first = False
            self.outputs = []
        if kind == "stream":
            self._print(content["name"], content["text"])
        elif kind == "error":
            self.outputs.append({"output_type": "error", **content})
        else:  # a widget's view has no Out[n]
            made = {"output_type": "display_data", "data": content["data"]}
            made["metadata"] = content.get("metadata") or {}
            if (id := (content.get("transient") or {}).get("display_id")) is not None:
                made["transient"] = {"display_id": id}
            self.outputs.append(made)

    def _print(self, name: str, text: str) -> None:
        last = self.outputs[-1] if self.outputs else {}
        if last.get("output_type") == "stream" and last.get("name") == name:
            text = last["text"] + text
            self.outputs.pop()
        if "\r" in text:
            text = overwritten(text)
        if len(text) > KEPT_CHARS:
            text = f"[... earlier text is not kept ...]\n{text[-KEPT_CHARS:]}"
        self.outputs.append({"output_type": "stream", "name": name, "text": text})

    def _update(self, content: dict[str, Any]) -> None:
        id = (content.get("transient") or {}).get("display_id")
        for number, output in enumerate(self.outputs):
            if id is not None and (output.get("transient") or {}).get("display_id") == id:
                new = {"data": content["data"], "metadata": content.get("metadata") or {}}
                self.outputs[number] = output | new


def overwritten(text: str) -> str:
    """Text without what carriage returns have overwritten, as a terminal shows it."""
    lines = []
    for line in text.split("\n"):
        body = line.removesuffix("\r")
        shown = body.rpartition("\r")[2]
        lines.append(shown + line[len(body) :])
    return "\n".join(lines)
