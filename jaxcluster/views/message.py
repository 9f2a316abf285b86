"""A message to the user: no output of a cell's code, and no error."""

from __future__ import annotations

import sys
from html import escape
from typing import Any

STYLE = "color: var(--jp-ui-font-color2, #616161); white-space: pre-wrap"


def show_message(shell: Any, message: str) -> None:
    """Show it under the cell, dimmed; on stderr in a terminal."""
    if not hasattr(shell, "kernel"):
        print(message, end="" if message.endswith("\n") else "\n", file=sys.stderr, flush=True)
        return
    shell.display_pub.publish(bundle(message))


def bundle(message: str) -> dict[str, str]:
    """What a notebook shows of it."""
    told = message.rstrip("\n")
    return {"text/plain": told, "text/html": f'<div style="{STYLE}">{escape(told)}</div>'}
