"""The words that users type, for the magics and for the shell: parsed, and nothing more."""

from __future__ import annotations

import ast
import difflib
import re
import shlex
import textwrap
from collections import ChainMap
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from jaxcluster.errors import UsageError
from jaxcluster.options.commands import command_of
from jaxcluster.options.known import known
from jaxcluster.options.table import EVERYDAY, SWITCH, Option
from jaxcluster.ranks import parse_ranks

_NO_COMMENT = re.compile(r"""('[^']*'|"([^"\\]|\\.)*"|\\.|(?<=\S)#|[^#])*""")
_FLAG = re.compile(r"-(?!\d+(\.\d*)?$)\S+")  # other words may be values


class Help(UsageError):
    """Not an error: the words were asked for."""


class Parser:
    """Reads a command's arguments. An error says what is wrong, and what to type instead.

    Args:
      prog: a command as it is typed, ``%jaxcluster status``; the table has what it takes.
    """

    def __init__(self, prog: str) -> None:
        self.prog, self.command = prog, command_of(prog)
        of_start = known().options if self.command.takes_start else ()
        taken = (one for one in of_start if one.name not in self.command.refuses)
        self.options = (*taken, *self.command.takes)
        self.flags = {f: one for one in self.options for f in (one.flag, one.short) if f[:1] == "-"}
        self.words = [one for one in self.options if one.flag[0] != "-"]
        example = self.command.example or " ".join(one.sample for one in self.words)
        self.example = f"{prog} {example}".strip()

    def format_help(self, topic: str = "") -> str:
        """The help text: usage, purpose, and each option with an example.

        Args:
          topic: of a start's options, those of this launcher, or "all".

        Raises:
          UsageError: there is no such launcher.
        """
        if self.command.takes_start and topic[:1].isalpha() and topic != "all":
            known().check(topic)
        shown = list(self.options)
        if topic in known().launchers:
            shown = [one for one in shown if topic in one.launchers]
        elif topic != "all":
            shown = [o for o in shown if o in self.command.takes or o.name in EVERYDAY]
        written = [one.written if one.is_needed else f"[{one.written}]" for one in shown[:4]]
        written += ["..."] if len(shown) > 4 else []
        lines = [" ".join([f"usage: {self.prog}", *written]), "", *_wrapped(self.command.about, 96)]
        lines.append("")
        for one in shown:
            what = f"{one.help} ({', '.join(one.launchers)})" if one.launchers else one.help
            lines += [f"  {one.written}", *(f"      {line}" for line in _wrapped(what, 90))]
            lines += [f"      For example: {one.typed}"] * bool(one.sample)
        told = "\n".join(lines)
        return told if self.prog[0] == "%" else told.replace("%jaxcluster", "jaxcluster")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}.", f"For example: {self.example}")

    def read(self, line: str | Sequence[str]) -> SimpleNamespace:
        """The arguments in a line; those that are missing are None.

        Raises:
          Help: it was asked for.
          UsageError: they are not this command's.
        """
        try:
            words = shlex.split(without_comment(line)) if isinstance(line, str) else list(line)
        except ValueError as error:
            self.error(f"{error} in {line!r}")
        for at, word in enumerate(words):
            if word in ("-h", "--help"):
                raise Help(self.format_help("".join(words[at + 1 : at + 2])))
        found: dict[str, Any] = dict.fromkeys(one.name for one in self.options)
        unknown, at = [], 0
        while at < len(words):
            word, (option, value, at) = words[at], self.next_option(words, at)
            if option is None and not _FLAG.fullmatch(word):
                free = (one for one in self.words if found[one.name] is None or one.is_repeated)
                option, value = next(free, None), word
            if option is not None:
                self._add(found, option, value)
            else:
                unknown.append(word)
        if unknown:
            self._refuse(unknown[0], found.get("launcher"))
        for one in self.words:
            if one.is_needed and not found[one.name]:
                self.error(f"{one.metavar} is missing: {one.help}")
        return SimpleNamespace(**found)

    def next_option(self, words: Sequence[str], at: int) -> tuple[Option | None, str | None, int]:
        """The option at a word, if it is one, with its value, and the place after both."""
        flag, equals, value = words[at].partition("=")
        option = self.flags.get(flag)
        short = self.flags.get(words[at][:2])
        if option is None and short is not None and short.kind is not SWITCH:
            return short, words[at][2:], at + 1  # -n4
        if equals or option is None or option.kind is SWITCH:
            return option, value if equals else None, at + 1
        if words[at + 1 : at + 2] and not _FLAG.fullmatch(words[at + 1]):
            return option, words[at + 1], at + 2
        return option, None, at + 1

    def _add(self, found: dict[str, Any], option: Option, word: str | None) -> None:
        kind, name = option.kind, option.name
        flag = option.shown if option.flag[0] == "-" else option.metavar.strip("[]")
        if kind is SWITCH:
            if word is not None:
                self.error(f"{flag} takes no value")
            found[name] = True
        elif word is None and not option.metavar.startswith("["):
            self.error(f"{flag} needs a value")
        else:
            try:  # a launcher's options stay text until its name is known
                value = word or "" if option.launchers or word is None else kind.read(word)
            except ValueError:
                self.error(f"{flag} must be {kind.wanted}, not {word!r}")
            found[name] = [*(found[name] or ()), value] if option.is_repeated else value

    def _refuse(self, word: str, launcher: str | None) -> NoReturn:
        """Say of a word that there is no such option, and what was perhaps meant."""
        if launcher:
            known().check(launcher)  # a broken launcher's options are not known
        begin = [flag for flag in self.flags if flag.startswith(word)]
        close = begin[:1] or difflib.get_close_matches(word, self.flags, n=1)
        if word.isdecimal() and "-n" in self.flags:
            close = [f"-n {word}"]
        told = (
            f" (did you mean {close[0]}?)" if close else f"; {self.prog} --help has what there is"
        )
        self.error(f"there is no {word}{told}")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def without_comment(line: str) -> str:
    """A magic's line without the comment at its end, which begins with a word's ``#``."""
    return _NO_COMMENT.match(line)[0].rstrip()  # type: ignore[index]


def split_run(parser: Parser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of ``jaxcluster run`` before the script, and the script with its own.

    A module's words begin with ``-m``.
    """
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return list(words[:at]), list(words[at + 1 :])
        if word in ("-m", "--module"):
            return list(words[:at]), ["-m", *words[at + 1 :]]
        if not word.startswith("-") or word in ("-", "-c"):
            break
        at = parser.next_option(words, at)[2]
    return list(words[:at]), list(words[at:])


def start_options(parsed: SimpleNamespace) -> dict[str, Any]:
    """The typed options, as keyword arguments of ``make_spec``."""
    given = {name: v for name, v in vars(parsed).items() if v is not None and name != "dry_run"}
    return given | ({"env": dict(ChainMap(*reversed(given["env"])))} if "env" in given else {})


def split_spmd(line: str) -> tuple[str, str]:
    """(the options, the expression) of a ``%spmd`` line, both as they were typed.

    A line such as ``--x``, which Python can read, is an expression.

    Raises:
      Help, UsageError: as ``Parser.read``; an option stands first that ``%%spmd`` does not have.
    """
    parser, words, at = Parser("%%spmd"), re.findall(r"\s*\S+", line), 0
    while option := parser.flags.get("".join(words[at : at + 1]).strip().partition("=")[0]):
        is_whole = option.kind is SWITCH or option.metavar[0] == "[" or "=" in words[at]
        at += 1 if is_whole else 2  # --profile=FOLDER alone has a value
    source = line[len("".join(words[:at])) :].lstrip()
    first = "".join(source.split()[:1])
    if first in ("-h", "--help") or (re.match(r"--[a-z]", first) and not _is_python(source)):
        parser.read([first])
    return "".join(words[:at]).strip(), source


def _is_python(source: str) -> bool:
    try:
        return bool(ast.parse(source))
    except (SyntaxError, ValueError):
        return False


def shards_line(line: str) -> tuple[str, set[str]]:
    """The (name, options) of a ``%shards`` line; quotes in ``params['w']`` stay as they are.

    Raises:
      Help, UsageError: as ``Parser.read``; there is no name.
    """
    words = without_comment(line).split(" ")
    options = {word for word in words if word.startswith("--") or word == "-h"}
    name = " ".join(word for word in words if word not in options).strip()
    Parser("%shards").read([*sorted(options), *([name] if name else [])])
    return name, options


def read_ranks(word: str, num_processes: int, command: str) -> list[int]:
    """The ranks that a line names, as ``0,2-3``.

    Raises:
      UsageError: it names none of the cluster's.
    """
    try:
        return parse_ranks(word, num_processes)
    except ValueError as error:
        last = num_processes - 1
        some = f"0-{last}" if last else "0"
        raise UsageError(f"{error}.", f"For example: {command} {some}") from None
