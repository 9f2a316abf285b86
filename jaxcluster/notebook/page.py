"""The page that a line comes from: what it can show, and what it has sent with its cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Page:
    """A notebook's page, or a terminal.

    Args:
      shell: IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    @property
    def rich(self) -> bool:
        """Whether this is a notebook, whose displays can be updated."""
        return hasattr(self.shell, "kernel")

    def show(self, bundle: Mapping[str, Any]) -> None:
        """Show a MIME bundle, in a terminal its text."""
        if self.rich:
            self.shell.display_pub.publish(bundle)
        else:
            print(bundle["text/plain"])

    def show_widget(self, widget: Any, saved: Mapping[str, Any]) -> None:
        """Show a widget; ``saved`` is what a saved notebook shows that knows none."""
        bundle, metadata = widget._repr_mimebundle_()
        self.shell.display_pub.publish({**bundle, **saved}, metadata)

    @property
    def cell_id(self) -> str:
        """The id of the notebook's cell that runs, where the frontend has said it."""
        return str((self._parent().get("metadata") or {}).get("cellId") or "")

    @property
    def parent(self) -> dict[str, Any]:
        """The message of the frontend under which a display is shown."""
        header = self._parent().get("header") or {}
        return {"header": {key: value for key, value in header.items() if key != "date"}}

    def _parent(self) -> dict[str, Any]:
        """The frontend's message with the cell that runs."""
        return (self.shell.kernel.get_parent("shell") if self.rich else None) or {}

    def is_silent(self) -> bool:
        """Whether what runs is no cell of the user's, but a line of the frontend's own."""
        return bool((self._parent().get("content") or {}).get("silent"))
