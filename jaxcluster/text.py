"""Bytes, plurals and tables as people read them."""

from __future__ import annotations

import re
from collections.abc import Sequence


def format_nbytes(size: float) -> str:
    """``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(count: int, word: str, many: str = "") -> str:
    """``1 device``, ``4 devices``."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def join_words(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, its columns as wide as their widest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$|^KEY$|AUTH", re.IGNORECASE)


def shown_value(variable: str, value: str) -> str:
    """A variable's value; ``...`` where it is a secret by its name.

    What is shown in a notebook is saved, and shared.
    """
    return "..." if _SECRET.search(variable) else value


def visible(text: str) -> str:
    """``text`` with escapes for what can't be seen: it could hide, or turn round, the rest."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
