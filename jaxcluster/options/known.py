"""The launchers that are installed, and every option of a start.

A launcher is found by its entry point (group ``jaxcluster.launchers``), those of jaxcluster's own
too. This room knows only a launcher's words: its name, its options, and examples.
"""

from __future__ import annotations

import difflib
import functools
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from jaxcluster.errors import UsageError
from jaxcluster.options.table import (
    LOCAL,
    LOCAL_START,
    OPTIONS,
    START,
    TEXT,
    VARIABLES,
    Field,
    Option,
)
from jaxcluster.text import join_words, shown_value, visible, without_secrets

GROUP = "jaxcluster.launchers"
OURS = "jaxcluster"
# How ours are listed: what a package's metadata has, its build has sorted. Others follow by name.
ORDER = ("ssh", "slurm", "mpi", "tpu", "kubernetes", "ipp")
# Options that every launcher knows.
OF_ALL = (
    Option("--python", TEXT, "PATH", "the hosts' Python", "~/venv/bin/python",
        field=Field("Python", "If empty, this kernel's path; in a pod, python3")),
    Option("--lease", TEXT, "TIME", "how long ranks wait if their host's connection is cut", "2h",
        pattern=r"\d+[smhd]?"),
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """The launchers and options that a start knows.

    Attributes:
      launchers: the classes that start agents on hosts, by name: ours first.
      broken: for each unusable launcher, the reason.
      options: of every start, and of all launchers, in the order of ``--help``.
    """

    launchers: Mapping[str, type[Any]]
    broken: Mapping[str, UsageError]
    options: tuple[Option, ...]

    @cached_property
    def by_name(self) -> dict[str, Option]:
        return {option.name: option for option in self.options}

    @cached_property
    def of_launchers(self) -> dict[str, Option]:
        return {name: option for name, option in self.by_name.items() if option.launchers}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The words that ``--launcher`` takes."""
        own = (f"{n}:NAME" if one.takes else n for n, one in self.launchers.items())
        return (LOCAL, "auto", *own)

    @cached_property
    def examples(self) -> dict[str, str]:
        """A whole start, by launcher."""
        own = {n: one.example or f"{START} {one.start}" for n, one in self.launchers.items()}
        return {LOCAL: f"{START} {LOCAL_START}", **own}

    def check(self, name: str, given: Iterable[str] = ()) -> tuple[str, str]:
        """The launcher's name and the word after its colon, if it knows these options.

        Args:
          given: the options' names.

        Raises:
          UsageError: there is no such launcher, it is broken, or it does not know an option.
        """
        kind, colon, rest = name.partition(":")
        if kind in self.broken:
            raise self.broken[kind]
        takes = self.launchers[kind].takes if kind in self.launchers else ""
        if takes and not rest:
            raise UsageError(f"{kind} needs the name of {takes}.", f"Try: {self.examples[kind]}")
        if kind not in self.examples or (colon and not takes):
            close = [
                f" (did you mean {n}?)" for n in difflib.get_close_matches(name, self.names, 1)
            ]
            example = f"For example: {self.examples[next(iter(self.launchers), LOCAL)]}"
            raise UsageError(
                f"There is no launcher {name!r}{''.join(close)}.",
                f"There are: {', '.join(self.names)}. {example}",
            )
        for one in given:
            option = self.of_launchers.get(one)
            if option is None or kind not in option.launchers:
                flag = f"--{one.replace('_', '-')}" if option is None else option.flag
                of = f", an option of {join_words(option.launchers)}" if option is not None else ""
                mine = " ".join(o.flag for o in self.options if kind in o.launchers)
                raise UsageError(
                    f"--launcher {kind} does not know {flag}{of}.",
                    f"{f'It takes: {mine}. ' if mine else ''}For example: {self.examples[kind]}",
                )
        return kind, rest

    def line(self, given: Mapping[str, Any]) -> str:
        """The given options, as a user types them after ``%jaxcluster start``, for showing only.

        It leaves out values of variables whose names suggest secrets, and escapes unprintable
        characters.
        """
        words: list[str] = []
        for name, option in self.by_name.items():  # in the order of --help
            if given.get(name) in (None, False):
                continue
            for value in option.kind.write(given[name]):
                shown = without_secrets(value)
                if option.kind is VARIABLES:
                    variable, equals, text = value.partition("=")
                    shown = f"{variable}{equals}{shown_value(variable, text)}"
                if not option.metavar:
                    words.append(option.shown)
                elif shown.startswith("-"):  # else it would be read as an option
                    words.append(shlex.quote(f"{option.shown}={shown}"))
                else:
                    words += [option.shown, shlex.quote(shown)]
        return visible(" ".join(words))


@functools.cache
def known() -> Known:
    """The launchers that are installed at the first call; importing them may take long."""
    return collect(entry_points(group=GROUP))


def collect(points: Iterable[EntryPoint]) -> Known:
    """The launchers of these entry points. One that can't be used takes no other with it."""
    launchers: dict[str, type[Any]] = {}
    broken: dict[str, UsageError] = {}
    packaged = ((point.dist.name if point.dist is not None else "?", point) for point in points)
    for package, point in sorted(packaged, key=_place):
        name = point.name
        if name in (LOCAL, "auto", *launchers):
            continue  # no package takes the place of another's
        try:
            found: Any = point.load()
            _merged([found])
            launchers[name] = found
        except (Exception, SystemExit) as error:  # it is another package's code
            broken[name] = UsageError(
                f"The launcher {name!r} of the package {package} can't be used: {point.value} "
                f"raises {type(error).__name__}: {error}.",
                f"Update it (pip install -U {package}) or remove it (pip uninstall {package}), "
                "and restart the kernel. All other launchers work.",
            )
    return Known(launchers, broken, (*OPTIONS, *_merged(launchers.values())))


def _place(one: tuple[str, EntryPoint]) -> tuple[int, str]:
    package, point = one
    is_ours = package == OURS and point.name in ORDER
    return ORDER.index(point.name) if is_ours else len(ORDER), point.name


def _merged(launchers: Collection[type[Any]]) -> tuple[Option, ...]:
    """The launchers' options, each once, with the names of all that know it."""
    by_name: dict[str, Option] = {}
    rows = [(option, of) for of in launchers for option in of.options]
    for option, of in [*rows, *((option, of) for option in OF_ALL for of in launchers)]:
        one = by_name.setdefault(option.name, option)
        by_name[option.name] = replace(one, launchers=(*one.launchers, of.name))
    return tuple(by_name.values())
