"""Options that were given, written as a line again. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from jaxcluster.options.known import known
from jaxcluster.options.table import Option
from jaxcluster.options.value_types import VARIABLES
from jaxcluster.text import shown_value, visible, without_secrets


def _typed(given: Mapping[str, Any]) -> Iterator[tuple[Option, str]]:
    """Each option with its value, in the order of ``--help``."""
    for name, option in known().by_name.items():
        value = given.get(name)
        if value is not None and value is not False:
            for one in option.kind.write(value):
                yield option, one


def line(given: Mapping[str, Any], hide: bool = False) -> str:
    """What would be typed behind ``%jaxcluster start``.

    Args:
      hide: it is only to be seen: without the values of variables that are secrets by their names,
        and with what is not printable as escapes.
    """
    words: list[str] = []
    for option, value in _typed(given):
        variable, equals, text = value.partition("=")
        written = value
        if hide and option.kind is VARIABLES:
            written = f"{variable}{equals}{shown_value(variable, text)}"
        elif hide:
            written = without_secrets(value)
        if not option.metavar:
            words.append(option.shown)
        elif written.startswith("-"):  # else it would be read as an option
            words.append(shlex.quote(f"{option.shown}={written}"))
        else:
            words += [option.shown, shlex.quote(written)]
    joined = " ".join(words)
    return visible(joined) if hide else joined
