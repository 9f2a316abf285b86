"""Options that were given together: put over each other, shown, written as a line again. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from jaxcluster.options.known import known
from jaxcluster.options.table import Option, kind_of
from jaxcluster.options.value_types import VARIABLES
from jaxcluster.text import is_secret, shown_value, visible, without_secrets

Given = dict[str, Any]  # by the names of ``make_spec``'s arguments; False is a switch taken back
# Of these the one that is said last counts: they say the same, or opposites.
EXCLUSIVE = (("hosts", "hostfile"), ("sync", "no_sync"))


def laid_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[Given, list[str]]:
    """(the options of ``under`` where ``over`` says nothing else, the flags that are left out).

    Where another launcher is asked for, the options that it does not know are left out. Variables
    of the environment are joined. None in ``over`` says nothing.
    """
    given = {name: value for name, value in over.items() if value is not None}
    result, out = dict(under), []
    kind = kind_of(given.get("launcher", under.get("launcher")))
    for name in list(result) if kind != kind_of(under.get("launcher")) else ():
        option = known().in_profiles[name]
        if option.launchers and kind not in option.launchers:
            del result[name]
            out.append(option.flag)
    for group in EXCLUSIVE:
        if any(given.get(name, False) is not False for name in group):
            for name in group:
                result.pop(name, None)
    if isinstance(given.get("env"), Mapping):
        given["env"] = {**result.get("env", {}), **given["env"]}
    return {**result, **given}, out


def typed(given: Mapping[str, Any]) -> list[list[str]]:
    """[flag, value] of each option, [flag] of a switch, in the order of ``--help``."""
    return [
        [option.shown, value] if option.metavar else [option.shown]
        for option, value in _typed(given)
    ]


def _typed(given: Mapping[str, Any]) -> Iterator[tuple[Option, str]]:
    for name, option in known().in_profiles.items():
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


def shown(option: Option | None, value: object) -> str:
    """A value as it is in the file, about; of a variable its name alone."""
    is_env = option is not None and option.kind is VARIABLES
    try:
        text = json.dumps(_hidden(value, is_env), ensure_ascii=False)
    except TypeError:  # a date
        text = str(value)
    text = visible(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hidden(value: object, is_env: bool) -> object:
    """A value without what stands under a secret's name in it.

    Of ``env``, whose variables may be any, without what stands under any name.
    """
    if isinstance(value, Mapping):
        hides = {name: is_env or is_secret(name) for name in value}
        return {n: "..." if hides[n] else _hidden(one, is_env) for n, one in value.items()}
    if isinstance(value, list):
        return [_hidden(one, is_env) for one in value]
    if is_env:
        name, equals, _ = str(value).partition("=")
        return f"{name}=..." if equals else "..."
    return without_secrets(value) if isinstance(value, str) else value
