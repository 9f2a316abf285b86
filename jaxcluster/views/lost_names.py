"""The names that a restart could not bring back: folded where a frontend can, else as text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from jaxcluster.views.displays import Bundle

FEW = 8  # that need no folding


def is_long(names: Sequence[str]) -> bool:
    return len(names) > FEW


def headline(names: Sequence[str]) -> str:
    return f"Lost: {len(names)} variables and settings, listed above."


def bundle(names: Sequence[str]) -> Bundle:
    """A MIME bundle that lists them all.

    Args:
      names: each with its reason.
    """
    items = "".join(f"<li>{escape(name)}</li>" for name in names)
    summary = f"{len(names)} variables and settings are lost"
    return {
        "text/plain": f"{summary}: {', '.join(names)}.",
        "text/html": f"<details><summary>{summary}</summary><ul>{items}</ul></details>",
    }
