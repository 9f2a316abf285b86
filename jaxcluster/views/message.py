"""A message to the user: no output of a cell's code, and no error."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

from jaxcluster.model.notices import Alarm

STYLE = "color: var(--jp-ui-font-color2, #616161); white-space: pre-wrap"


def show_message(shell: Any, message: str) -> None:
    """Show it under the cell, dimmed; in red what is an ``Alarm``. A terminal has stderr for both.

    What goes to stderr is in red in every saved notebook.
    """
    if isinstance(message, Alarm) or not hasattr(shell, "kernel"):
        print(message, end="" if message.endswith("\n") else "\n", file=sys.stderr, flush=True)
        return
    shell.display_pub.publish(bundle(message))


def bundle(message: str) -> dict[str, str]:
    """What a notebook shows of it."""
    told = message.rstrip("\n")
    return {"text/plain": told, "text/html": f'<div style="{STYLE}">{escape(told)}</div>'}
