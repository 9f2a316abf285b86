"""Bytes, times, plurals and tables as people read them."""

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


def format_seconds(seconds: float) -> str:
    """``8 s``, ``90 min``: in the unit in which it has two or three digits."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def seconds(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``15m``, ``2h``, ``1d``, Slurm's ``2:00:00`` or ``1-0:00:00``.

    Raises:
      ValueError: it is not one of these.
    """
    if found := re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", text):
        days, hours, minutes, rest = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60.0 + rest
    unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}.get(text[-1:], 0)
    return float(text[:-1]) * unit if unit else float(text)


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


_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|_KEY$|^KEY$|AUTH|_PWD$|(^|_)PAT$|_PASS$",
    re.IGNORECASE,
)
# A variable that is set, or an option, in a text that a shell or another program reads.
_SET = re.compile(
    r"""(?P<quote>["'])(?P<inside>[A-Z_][A-Z0-9_]*)=.*?(?P=quote)"""
    r"""|(?P<name>(?<![\w-])(?:--[\w-]+|[A-Z_][A-Z0-9_]*))=(?P<value>"[^"]*"|'[^']*'|\S*)""",
    re.DOTALL,
)


def is_secret(variable: str) -> bool:
    """Whether its name is that of a secret: ``HF_TOKEN``."""
    return _SECRET.search(variable) is not None


def shown_value(variable: str, value: str) -> str:
    """A variable's value; ``...`` where it is a secret by its name.

    A notebook's outputs are saved, and shared.
    """
    return "..." if is_secret(variable) else value


def without_secrets(text: str) -> str:
    """A text with ``...`` for what it sets secrets to: ``-x HF_TOKEN=...``."""

    def hide(found: re.Match[str]) -> str:
        quote, name = found["quote"] or "", found["inside"] or found["name"]
        if is_secret(name):
            return f"{quote}{name}=...{quote}"
        if quote:
            return found[0]
        return f"{name}={without_secrets(found['value'])}"

    return _SET.sub(hide, text)


def visible(text: str) -> str:
    """``text`` with escapes for what can't be seen: it could hide, or turn round, the rest."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
