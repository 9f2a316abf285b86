"""Commands for a login shell that is not known: sh, bash, zsh, ksh, csh, tcsh or fish."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Words of these need no quotes anywhere. Not "=" in front: zsh looks such a word up in PATH.
_PLAIN = re.compile(r"[A-Za-z0-9_./:,+@-][A-Za-z0-9_./:,+@=-]*")
_HOME = re.compile(r"~[A-Za-z0-9_.-]*/")


def quote(word: str) -> str:
    """``word`` as one word of any login shell's command line.

    In single quotes fish reads a backslash and csh reads ``!``, and none of them can hold a single
    quote: these three stand outside the quotes, behind a backslash.

    Raises:
      ValueError: it holds a line break or a NUL, which csh and execve can't pass on.
    """
    if bad := re.search(r"[\n\r\0]", word):
        name = {"\n": "a line break", "\r": "a carriage return", "\0": "a NUL"}[bad[0]]
        raise ValueError(f"{word!r} holds {name}")
    if _PLAIN.fullmatch(word):
        return word
    parts = re.findall(r"[^'\\!]+|['\\!]", word)
    return "".join(f"\\{p}" if p in "'\\!" else f"'{p}'" for p in parts) or "''"


def quote_path(path: str) -> str:
    """A path as one word; ``~/`` in front stays the home of that host.

    Raises:
      ValueError: as ``quote`` does.
    """
    home = _HOME.match(path)
    if home is None:
        return quote(path)
    rest = path[home.end() :]
    return home[0] + (quote(rest) if rest else "")


def join(words: Iterable[str], path: str = "") -> str:
    """A command line of these words, for any login shell, or a line of a script for sh.

    Args:
      path: one of them: ``~/`` in front of it stays the home there.

    Raises:
      ValueError: as ``quote`` does.
    """
    return " ".join(quote_path(word) if word == path else quote(word) for word in words)
