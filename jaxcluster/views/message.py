"""A message to the user: no output of a cell's code, and no error."""

from __future__ import annotations

import sys
import uuid
from html import escape
from typing import Any

from jaxcluster.model.notices import Alarm

STYLE = "color: var(--jp-ui-font-color2, #616161); white-space: pre-wrap"


def show_message(shell: Any, message: str) -> None:
    """Show it under the cell, dimmed; in red what is an ``Alarm``. A terminal has stderr for both.

    What goes to stderr stands in red in every saved notebook.
    """
    if isinstance(message, Alarm) or not hasattr(shell, "kernel"):
        print(message, end="" if message.endswith("\n") else "\n", file=sys.stderr, flush=True)
        return
    shell.display_pub.publish(_bundle(message))


def _bundle(message: str) -> dict[str, str]:
    told = message.rstrip("\n")
    return {"text/plain": told, "text/html": f'<div style="{STYLE}">{escape(told)}</div>'}


class PassingMessage:
    """What is true while a cell runs, in one place below it: the last one is shown, and none later.

    A terminal has them one after another, and keeps them.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._id = ""

    def show(self, message: str) -> None:
        if not hasattr(self._shell, "kernel"):
            show_message(self._shell, message)
            return
        is_shown, self._id = bool(self._id), self._id or uuid.uuid4().hex
        self._publish(_bundle(message), is_shown)

    def clear(self) -> None:
        """Take it away: a saved notebook has nothing of it."""
        if self._id:
            self._publish({"text/plain": ""}, True)
            self._id = ""

    def _publish(self, bundle: dict[str, str], is_update: bool) -> None:
        self._shell.display_pub.publish(
            bundle, {}, transient={"display_id": self._id}, update=is_update
        )
