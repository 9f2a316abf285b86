"""The options of a start as words: typed on a line, written in a profile, shown as a line again.

``COMMON`` has those that are no launcher's own; ``launchers.options`` has the others. The start
command's parser is made from the two, profiles are checked by them, and no list stands elsewhere.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxcluster.launchers import options
from jaxcluster.launchers.options import Option
from jaxcluster.text import is_secret, shown_value, visible, without_secrets

Options = dict[str, Any]  # by the names of ``make_spec``'s arguments; False is a switch taken back


def _env(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def _device_ids(text: str) -> list[int] | list[list[int]]:
    """``0,1`` for the same devices on every rank, ``0/1/2/3`` for one list a rank."""
    try:
        lists = [[int(i) for i in part.split(",")] for part in text.split("/")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither 0,1 (every rank) nor 0/1 (a list for each rank)"
        ) from None
    return lists if "/" in text else lists[0]


def devices(word: str) -> int | str:
    """How many devices each process gets: a number, or ``all``."""
    return word if word == "all" else int(word)


COMMON = (
    Option("--num-processes", (), "N", "default: one for each GPU or TPU chip, else 2 on CPU", int),
    Option("--devices-per-process", (), "D", "or all of a host's; 1 on CPU by default", devices),
    Option("--platform", (), "PLATFORM", "cpu, cuda, rocm or tpu"),
    Option("--launcher", (), "LAUNCHER", f"where: {', '.join(options.NAMES)}; local by default"),
    Option("--name", (), "NAME", "default: main"),
    Option(
        "--env",
        (),
        "NAME=VALUE",
        "a variable of the processes' environment; may be repeated",
        _env,
        True,
    ),
    Option("--timeout", (), "S", "seconds that the start may take (60)", float),
    Option("--detach", (), "", "keep the cluster running when this process ends"),
    Option(
        "--local-device-ids",
        (),
        "0,1",
        "the GPUs or TPU chips of each process; 0/1 for one list per process",
        _device_ids,
    ),
    Option("--coordinator-address", (), "HOST:PORT", "or unix:/PATH"),
    Option("--coordinator-bind-address", (), "HOST:PORT", "or unix:/PATH"),
    Option("--initialization-timeout", (), "S", "", int),
    Option("--heartbeat-timeout-seconds", (), "S", "", int),
)
SHORT = {"--num-processes": "-n"}


def argument_of(option: Option) -> str:
    """What ``make_spec`` calls it."""
    return {"timeout": "timeout_s"}.get(option.dest, option.dest)


BY_ARGUMENT = {argument_of(option): option for option in (*COMMON, *options.OPTIONS)}
# Of these the one that is said last counts: they say the same, or opposites.
EXCLUSIVE = (("hosts", "hostfile"), ("sync", "no_sync"))


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that are no launcher's own; what was not typed is None."""
    for option in COMMON:
        flags = [SHORT[option.flag]] if option.flag in SHORT else []
        names = [*flags, option.flag]
        kept: dict[str, Any] = {"dest": argument_of(option), "help": option.help or None}
        if not option.metavar:
            parser.add_argument(*names, action="store_const", const=True, **kept)
            options.add_taken_back(parser, option, argument_of(option))
            continue
        action = "append" if option.repeated else "store"
        parser.add_argument(*names, type=option.read, action=action, metavar=option.metavar, **kept)


# ------------------------------------------------------------------------------ in a profile


def option_for(word: str) -> Option | None:
    """The option that a profile's word means: as it is typed, without the dashes."""
    dest = word.replace("-", "_")
    if dest == "n":
        dest = "num_processes"
    return next((one for one in BY_ARGUMENT.values() if one.dest == dest), None)


def all_words() -> list[str]:
    """Each word that a profile may have."""
    return [option.flag.lstrip("-") for option in BY_ARGUMENT.values()]


def read_value(option: Option, value: object) -> Any:
    """What ``make_spec`` takes of a value in a profile.

    Raises:
      ValueError: it is not of the option's type; the text says what it must be.
    """
    if not option.metavar:
        if not isinstance(value, bool):
            raise ValueError("true or false")
        # As ``launchers.options`` has them.
        return value if option in COMMON else ("yes" if value else False)
    if option.flag == "--env":
        return _read_env(value)
    if option.read is _device_ids:
        return _read_device_ids(value)
    if option.read is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
            raise ValueError("a number of seconds above 0")
        return float(value)  # type: ignore[arg-type]
    if option.read is devices and value == "all":
        return value
    if option.read in (*options.WHOLE, devices):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError("a whole number from 1 up")
        return value if option in COMMON else str(value)
    if option.repeated:
        return [_text(one) for one in (value if isinstance(value, list) else [value])]
    if option.flag == "--hosts" and isinstance(value, list):
        return ",".join(map(_text, value))
    return _text(value)


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("text in quotes")
    return str(value)


def _read_env(value: object) -> dict[str, str]:
    wanted = 'a table of variables: { NAME = "VALUE" }'
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        try:
            return dict(map(_env, value))
        except argparse.ArgumentTypeError:
            raise ValueError(wanted) from None
    if not isinstance(value, Mapping):
        raise ValueError(wanted)
    found = {}
    for name, one in value.items():
        try:
            found[str(name)] = _text(one)
        except ValueError:
            raise ValueError(f"{wanted}, and {visible(name)} is not text in quotes") from None
    return found


def _read_device_ids(value: object) -> list[int] | list[list[int]]:
    lists = value if isinstance(value, list) else [value]
    parts = [",".join(map(str, one)) if isinstance(one, list) else str(one) for one in lists]
    is_nested = any(isinstance(one, list) for one in lists)
    try:
        ids = _device_ids(("/" if is_nested else ",").join(parts))
    except argparse.ArgumentTypeError:
        wanted = 'a list of numbers, [0, 1], or a list for each rank, "0/1"'
        raise ValueError(wanted) from None
    return [ids] if is_nested and len(lists) == 1 else ids  # type: ignore[return-value]


def shown(option: Option | None, value: object) -> str:
    """A value as it stands in the file, about; of a variable its name alone."""
    hidden = _without_values(value) if option in COMMON and option.flag == "--env" else value
    try:
        text = json.dumps(_hidden(hidden), ensure_ascii=False)
    except TypeError:  # a date
        text = str(value)
    text = visible(text)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hidden(value: object) -> object:
    """A value without what stands under a secret's name in it."""
    if isinstance(value, Mapping):
        return {k: "..." if is_secret(k) else _hidden(one) for k, one in value.items()}
    if isinstance(value, list):
        return [_hidden(one) for one in value]
    return without_secrets(value) if isinstance(value, str) else value


def _without_values(value: object) -> object:
    """Of ``env``, whose variables may be any: their names."""
    if isinstance(value, Mapping):
        return dict.fromkeys(value, "...")
    if isinstance(value, list):
        return [_without_values(one) for one in value]
    name, equals, _ = str(value).partition("=")
    return f"{name}=..." if equals else "..."


# ------------------------------------------------------------------------------ put together


def kind_of(launcher: object) -> str:
    return str(launcher or "local").partition(":")[0]


def laid_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """(the options of ``under`` where ``over`` says nothing else, the flags that are left out).

    Where another launcher is asked for, the options that it does not know are left out. Variables
    of the environment are joined. None in ``over`` says nothing.
    """
    given = {name: value for name, value in over.items() if value is not None}
    result, out = dict(under), []
    kind = kind_of(given.get("launcher", under.get("launcher")))
    for name in list(result) if kind != kind_of(under.get("launcher")) else ():
        option = BY_ARGUMENT[name]
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


# ------------------------------------------------------------------------------ as a line


def typed(given: Mapping[str, Any]) -> list[list[str]]:
    """[flag, value] of each option, [flag] of a switch, in the order of ``--help``."""
    return [[flag, value] if option.metavar else [flag] for option, flag, value in _typed(given)]


def _typed(given: Mapping[str, Any]) -> Iterator[tuple[Option, str, str]]:
    for name, option in BY_ARGUMENT.items():
        value = given.get(name)
        if value is None or value is False:
            continue
        flag = SHORT.get(option.flag, option.flag)
        values = [str(value)]
        if not option.metavar:
            values = [""]
        elif isinstance(value, Mapping):
            values = [f"{variable}={text}" for variable, text in value.items()]
        elif option.read is _device_ids:
            lists = [one if isinstance(one, Sequence) else [one] for one in value]
            joined = [",".join(map(str, one)) for one in lists]
            values = [("/" if isinstance(value[0], Sequence) else ",").join(joined)]
        elif option.repeated and not isinstance(value, str):
            values = list(map(str, value))
        elif isinstance(value, float):
            values = [f"{value:g}"]
        for one in values:
            yield option, flag, one


def line(given: Mapping[str, Any], hide: bool = False) -> str:
    """What would be typed behind ``%jaxcluster start``.

    Args:
      hide: it is only to be seen: without the values of variables that are secrets by their names,
        and with what is not printable as escapes.
    """
    words: list[str] = []
    for option, flag, value in _typed(given):
        variable, equals, text = value.partition("=")
        written = value
        if hide and option.flag == "--env":
            written = f"{variable}{equals}{shown_value(variable, text)}"
        elif hide:
            written = without_secrets(value)
        if not option.metavar:
            words.append(flag)
        elif written.startswith("-"):  # else it would be read as an option
            words.append(shlex.quote(f"{flag}={written}"))
        else:
            words += [flag, shlex.quote(written)]
    joined = " ".join(words)
    return visible(joined) if hide else joined
