"""The options of every start, and the kinds of their values. Pure.

A launcher declares its own; ``known`` has all of them. The command line, ``--help`` and the page's
form are made from that; nothing else lists them.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcluster.errors import UsageError
from jaxcluster.text import seconds

START = "%jaxcluster start"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
LOCAL = "local"  # this machine, as --launcher names it
LOCAL_START = "-n 4"
NO_OPTION = r"[^-].*"  # ssh and gcloud would take others for their options
VISIBLE = r"[^\x00-\x1f\x7f]+"


@dataclass(frozen=True)
class Kind:
    """One kind of values.

    Attributes:
      name: as the page's form knows it.
      read: makes the value of a typed word or a Python object; a ValueError refuses it.
      wanted: what must be typed.
      write: the words that a user types for a value, each after its own flag.
    """

    name: str
    read: Callable[[Any], Any]
    wanted: str = "text"
    write: Callable[[Any], list[str]] = lambda value: [str(value)]


def is_seconds(value: object) -> bool:
    """Whether it is a finite number of seconds above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf  # type: ignore[operator]


def _known(value: Any, is_right: bool) -> Any:
    """The value, if it is one of its kind."""
    if not is_right:
        raise ValueError(value)
    return value


def _text(given: Any) -> str:
    return str(_known(given, isinstance(given, str)))


def _count(given: Any) -> int:
    number = int(given) if isinstance(given, str) else operator.index(given)
    return int(_known(number, type(given) is not bool and number >= 1))


def _seconds(given: Any) -> float:
    number = seconds(given) if isinstance(given, str) else given
    return float(_known(number, is_seconds(number)))


def _number(word: str) -> int:
    return int(_known(word, word.isdecimal()))


def _variables(given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    name, equals, value = _text(given).partition("=")
    return {_known(name, bool(name and equals)): value}


def _device_ids(given: Any) -> Sequence[Any]:
    if not isinstance(given, str):
        return _known(given, isinstance(given, Sequence))  # type: ignore[no-any-return]
    lists = [[int(i) for i in part.split(",")] for part in given.split("/")]
    return lists if "/" in given else lists[0]


def _write_device_ids(value: Any) -> list[str]:
    lists = [one if isinstance(one, Sequence) else [one] for one in value]
    joined = [",".join(map(str, one)) for one in lists]
    return [("/" if isinstance(value[0], Sequence) else ",").join(joined)]


TEXT = Kind("text", _text)
# No shell stands between us and a launcher's command.
PATH = Kind("text", lambda given: os.path.expanduser(_text(given)))
WORDS = Kind("text", lambda line: tuple(shlex.split(_text(line))), "words with closed quotes")
COUNT = Kind("count", _count, "a whole number from 1 up")
DEVICES = Kind("devices", lambda given: given if given == "all" else _count(given),
    "a whole number from 1 up, or all")  # fmt: skip
SECONDS = Kind("seconds", _seconds, "seconds above 0, or a time such as 15m or 2h",
    lambda value: [f"{value:g}"])  # fmt: skip
SWITCH = Kind("switch", lambda given: _known(given, isinstance(given, bool)), "True or False",
    lambda value: [""])  # fmt: skip
HOSTS = Kind("hosts", _text)
TEXTS = Kind("texts",  # as often as it is typed
    lambda given: (given,) if isinstance(given, str) else tuple(map(str, given)),
    write=lambda value: [value] if isinstance(value, str) else list(map(str, value)))  # fmt: skip
VARIABLES = Kind("variables", _variables, "of the form NAME=VALUE",
    lambda value: [f"{name}={text}" for name, text in value.items()])  # fmt: skip
DEVICE_IDS = Kind("device ids", _device_ids, "0,1 (every rank) or 0/1 (a list for each rank)",
    _write_device_ids)  # fmt: skip
NUMBER = Kind("number", _number, "a number, such as 2")
CELL = Kind("cell", lambda word: _number(word.strip("[]")), "a cell's number, such as 7")
ONOFF = Kind("on or off", lambda word: _known(word, word in ("on", "off")) == "on", "on or off")
REPEATED = (TEXTS, VARIABLES)


@dataclass(frozen=True)
class Field:
    """An option's field in the page's form.

    Attributes:
      label: what stands above it.
      help: what stands below it; "" for the option's own.
      empty: the text in an empty field; "" stands for "automatic".
      launchers: those with which the form asks for it; () for all that know it.
    """

    label: str
    help: str = ""
    empty: str = ""
    launchers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """One option of a start.

    Attributes:
      flag: as it is typed: ``--hosts``.
      kind: what its values are.
      metavar: what stands for its value in ``--help``; "" for a switch.
      help: what it is for.
      sample: a value for the example in ``--help``, with other options that it needs.
      launchers: those that know it, as ``known`` fills in; () for an option of every start.
      field: in the page's form; None where it has none there.
      short: another flag, which is the one that is shown.
      argument: what ``make_spec`` calls it; "" if it is the flag's name.
      pattern: what its text, or each of its texts, must match; "" for any.
      is_needed: whether a command does nothing without it.
    """

    flag: str
    kind: Kind
    metavar: str
    help: str
    sample: str = ""
    launchers: tuple[str, ...] = ()
    field: Field | None = None
    short: str = ""
    argument: str = ""
    pattern: str = ""
    is_needed: bool = False

    @property
    def name(self) -> str:
        """The argument of ``make_spec``."""
        return self.argument or self.flag.lstrip("-").replace("-", "_")

    @property
    def shown(self) -> str:
        """The flag that is shown."""
        return self.short or self.flag

    @property
    def written(self) -> str:
        """As ``--help`` lists it: ``--hosts HOST:N``; a word by what stands for it."""
        return f"{self.shown} {self.metavar}".strip() if self.flag[0] == "-" else self.metavar

    @property
    def is_repeated(self) -> bool:
        return self.kind in REPEATED or (self.flag[0] != "-" and self.metavar[-3:] == "...")

    @property
    def typed(self) -> str:
        """The option with its sample."""
        glue = "" if self.sample.startswith("=") else " "
        return f"{self.shown}{glue}{self.sample}".strip() if self.flag[0] == "-" else self.sample

    def value(self, given: Any) -> Any:
        """The value that was typed, or given in Python.

        Raises:
          UsageError: it can't have that; with a line to type.
        """
        # A variable is perhaps a secret.
        shown = type(given).__name__ if self.kind is VARIABLES else repr(given)
        wrong = f"{self.shown} must be {self.kind.wanted}, not {shown}."
        if self.launchers and isinstance(given, str) and not given.strip():
            wrong = f"{self.flag} has no value."
        else:
            with contextlib.suppress(ValueError, TypeError):
                found = self.kind.read(given)
                texts = found if isinstance(found, tuple) else [found]
                odd = [t for t in texts if self.pattern and not re.fullmatch(self.pattern, t, re.S)]
                if not odd:
                    return found
                wrong = f"{self.flag} can't be {odd[0]!r}."
        raise UsageError(wrong, f"For example: {START} {self.typed}")


OPTIONS = (
    Option("--num-processes", COUNT, "N",
        "how many ranks (default: one for each GPU or TPU chip, else 2 on CPU)", "4", short="-n",
        field=Field("Ranks", "Processes, in all")),
    Option("--devices-per-process", DEVICES, "D",
        "how many devices each rank gets (default on CPU: 1)", "2",
        field=Field("Devices per rank", "Any number on CPU; “all”: a host's GPUs or TPU chips")),
    Option("--platform", TEXT, "PLATFORM", "cpu, cuda, rocm or tpu (default: what the machine has)",
        "cpu", field=Field("Platform", "If automatic, the best that the hosts have")),
    Option("--launcher", TEXT, "NAME",
        "local (this machine, the default), auto (the job or TPU slice that this runs in), ssh...",
        "ssh --hosts h1:2,h2:2", field=Field("Where")),
    Option("--name", TEXT, "NAME", "the cluster's name (default: main; jaxcluster run: run-PID)",
        "small", field=Field("Name", "For %jaxcluster attach")),
    Option("--env", VARIABLES, "NAME=VALUE",
        "a variable of the processes' environment; may be repeated",
        "XLA_FLAGS=--xla_dump_to=/tmp/dump",
        field=Field("Environment", empty="NAME=VALUE, one per line")),
    Option("--timeout", SECONDS, "S", "a start's limit: seconds, 15m or 2h (default: 60)", "300",
        argument="timeout_s",
        field=Field("Time limit", "Seconds for the start, or 30m, 2h", "60")),
    Option("--detach", SWITCH, "", "keep the cluster running when this process ends",
        field=Field("Keep it running when the kernel ends")),
    Option("--local-device-ids", DEVICE_IDS, "0,1",
        "the GPUs or TPU chips of each process; 0/1 for one list per process", "0/1/2/3"),
    Option("--coordinator-address", TEXT, "HOST:PORT",
        "where JAX's coordinator listens: HOST:PORT or unix:/PATH", "127.0.0.1:8476"),
    Option("--coordinator-bind-address", TEXT, "HOST:PORT",
        "the address that it binds to, if that differs", "0.0.0.0:8476"),
    Option("--initialization-timeout", COUNT, "S",
        "seconds that jax.distributed.initialize may take", "600"),
    Option("--heartbeat-timeout-seconds", COUNT, "S",
        "seconds without a heartbeat before JAX gives up on a rank (default: 100)", "300"),
    Option("--dry-run", SWITCH, "", "print what would be started, and start nothing"),
)  # fmt: skip
# What everybody needs: ``start --help`` shows these.
EVERYDAY = (
    "num_processes", "devices_per_process", "platform", "launcher", "hosts", "name", "env",
    "timeout_s", "detach", "dry_run",
)  # fmt: skip
# What ``make_spec`` takes of them.
COMMON = {option.name: option for option in OPTIONS if option.name != "dry_run"}


def kind_of(launcher: object) -> str:
    """``ipp`` of ``ipp:pbs``; ``local`` where none was named."""
    return str(launcher or LOCAL).partition(":")[0]


def check_platform(platform: str) -> None:
    """Refuse a platform that there is not.

    Raises:
      UsageError: it is not one of ``PLATFORMS``.
    """
    if platform not in PLATFORMS:
        raise UsageError(
            f"There is no platform {platform!r}: it is cpu, cuda, rocm or tpu.",
            f"Try: {START} --platform {'cuda' if platform == 'gpu' else 'cpu'}",
        )
