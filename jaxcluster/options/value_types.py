"""What the values of options are: read from a line, checked, written as a line. Pure."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcluster.text import seconds


@dataclass(frozen=True)
class Kind:
    """One kind of values.

    Attributes:
      name: as the page's form knows it.
      read: makes a value of a word that was typed; a ValueError refuses it.
      write: the words that would be typed for a value, each behind a flag of its own.
      wanted: what a value must be, in Python.
      is_right: whether it is that.
      parse: makes of checked text what a launcher works with; a ValueError says what is wrong.
      typed: what is to be typed, if that differs.
    """

    name: str
    read: Callable[[str], Any] = str
    write: Callable[[Any], list[str]] = lambda value: [str(value)]
    wanted: str = ""
    is_right: Callable[[object], bool] = lambda value: True
    parse: Callable[[Any], Any] = lambda value: value
    typed: str = ""


def is_count(value: object) -> bool:
    """Whether it is a whole number from 1 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_seconds(value: object) -> bool:
    """Whether it is a finite number of seconds above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf  # type: ignore[operator]


def _read_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(text)
    return name, value


def _read_number(word: str) -> int:
    if not word.isdecimal():
        raise ValueError(word)
    return int(word)


def _read_device_ids(text: str) -> list[int] | list[list[int]]:
    lists = [[int(i) for i in part.split(",")] for part in text.split("/")]
    return lists if "/" in text else lists[0]


def _write_device_ids(value: Any) -> list[str]:
    lists = [one if isinstance(one, Sequence) else [one] for one in value]
    joined = [",".join(map(str, one)) for one in lists]
    return [("/" if isinstance(value[0], Sequence) else ",").join(joined)]


TEXT = Kind("text", wanted="text", is_right=lambda value: isinstance(value, str))
# No shell stands between us and a launcher's command.
PATH = replace(TEXT, parse=os.path.expanduser)
WORDS = replace(TEXT, parse=lambda line: tuple(shlex.split(line)))  # of a command
COUNT = Kind("count", int, wanted="a whole number from 1 up", is_right=is_count)
DEVICES = Kind("devices", lambda word: word if word == "all" else int(word),
    wanted="a whole number from 1 up, or all",
    is_right=lambda value: value == "all" or is_count(value))  # fmt: skip
SECONDS = Kind("seconds", seconds, lambda value: [f"{value:g}"], "more than 0 seconds", is_seconds,
    typed="seconds, or a time such as 15m or 2h")  # fmt: skip
SWITCH = Kind("switch", write=lambda value: [""], wanted="True or False",
    is_right=lambda value: isinstance(value, bool))  # fmt: skip
HOSTS = Kind("hosts")
TEXTS = Kind("texts",  # as often as it is typed
    write=lambda value: [value] if isinstance(value, str) else list(map(str, value)))  # fmt: skip
VARIABLES = Kind("variables", _read_variable,
    lambda value: [f"{name}={text}" for name, text in value.items()],
    'a dict of variables: {"NAME": "VALUE"}', lambda value: isinstance(value, Mapping),
    typed="of the form NAME=VALUE")  # fmt: skip
DEVICE_IDS = Kind("device ids", _read_device_ids, _write_device_ids,
    "a list of numbers, [0, 1], or a list for each rank, [[0], [1]]",
    lambda value: isinstance(value, Sequence) and not isinstance(value, str),
    typed="0,1 (every rank) or 0/1 (a list for each rank)")  # fmt: skip
NUMBER = Kind("number", _read_number, typed="a number, such as 2")
CELL = Kind("cell", lambda word: _read_number(word.strip("[]")), typed="a cell's number, such as 7")
REPEATED = (TEXTS, VARIABLES)
