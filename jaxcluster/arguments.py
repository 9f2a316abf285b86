"""The words that users type, for the magics and for the shell: parsed, and nothing more."""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import re
import shlex
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxcluster import removed
from jaxcluster.errors import UsageError
from jaxcluster.options.commands import command_of
from jaxcluster.options.known import known
from jaxcluster.options.table import EVERYDAY, Option
from jaxcluster.options.value_types import SWITCH
from jaxcluster.ranks import parse_ranks

WIDTH = 26  # of the column of options in --help
STARTS = ("start", "run", "doctor")  # they take the options of a start
MOST_LISTED = 10  # options that a message lists; of more --help does
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "devices": "a whole number or all",
    "seconds": "seconds, or a time such as 15m or 2h",
}


class Help(UsageError):
    """Not an error: the words were asked for."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong and what to type instead, in one UsageError; never ends the process.

    Args:
      prog: a command as it is typed, ``%jaxcluster status``; the table has what it takes.
      example: what a message shows; the command alone by default.
      refused: a start's options that this command doesn't take.
    """

    def __init__(self, prog: str, example: str = "", *refused: str) -> None:
        super().__init__(prog, add_help=False, allow_abbrev=False, exit_on_error=False)
        self.command = command_of(prog)
        self.refused = refused
        self.takes_start = prog.rpartition(" ")[2] in STARTS
        self.options = (*(known().options if self.takes_start else ()), *self.command.takes)
        words = [one.metavar for one in self.options if one.flag[0] != "-"]
        self.example = example or " ".join([prog, *words])
        for one in self.options:
            self._add(one)

    def _add(self, one: Option) -> None:
        """Take an option or a word; what is not typed of it is None."""
        names = [*([one.short] if one.short else []), one.flag]
        if one.kind is SWITCH:
            self.add_argument(*names, dest=one.name, action="store_const", const=True)
            return
        # A launcher's stay text until it is known which launcher that is.
        taken: dict[str, Any] = {"metavar": one.metavar}
        taken["type"] = str if one.launchers else one.kind.read
        if one.flag[0] != "-":
            names, taken["nargs"] = [one.name], "*" if one.metavar.endswith("...") else "?"
        else:
            taken["dest"] = one.name
            if one.metavar.startswith("["):
                taken |= {"nargs": "?", "const": ""}
            elif one.is_repeated:
                taken["action"] = "append"
        self.add_argument(*names, **taken)

    def format_help(self, topic: str = "") -> str:
        """What can be typed, what it does, and each option with an example.

        Args:
          topic: of a start's options, those of this launcher, or "all".

        Raises:
          UsageError: there is no such launcher.
        """
        if self.takes_start and topic[:1].isalpha() and topic != "all":
            known().check(topic)
        shown = [one for one in self.options if one.name not in self.refused]
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
            told = _wrapped(what, 96 - WIDTH)
            if len(one.written) < WIDTH - 3:
                lines.append(f"  {one.written:<{WIDTH - 2}}{told.pop(0)}")
            else:
                lines.append(f"  {one.written}")
            lines += [f"{' ' * WIDTH}{line}" for line in (*told, self._example_of(one))]
        shown_help = "\n".join(lines).rstrip()
        if self.prog.startswith("%"):
            return shown_help
        return shown_help.replace("%jaxcluster", "jaxcluster")  # in a shell

    def _example_of(self, one: Option) -> str:
        typed = one.example
        if self.prog.endswith(" doctor") and "--launcher" not in typed:
            own = typed if one.shown == "-n" else typed.removeprefix("-n 4 ")
            typed = f"--launcher ssh --hosts h1,h2 {own}"
        script = " train.py" if self.prog.endswith(" run") else ""
        return f"{self.prog} {typed}{script}"

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}.", f"For example: {self.example}")

    def read(self, line: str | Sequence[str]) -> argparse.Namespace:
        """The arguments in a line.

        Raises:
          UsageError: they are not this command's.
        """
        try:
            words = shlex.split(without_comment(line)) if isinstance(line, str) else list(line)
        except ValueError as error:
            self.error(f"{error} in {line!r}")
        for at, word in enumerate(words):
            if word in ("-h", "--help"):
                raise Help(self.format_help("".join(words[at + 1 : at + 2])))
        try:
            found, unknown = self.parse_known_args(words)
        except argparse.ArgumentError as error:
            self.error(_reason(error))
        if unknown:
            flag = unknown[0].partition("=")[0]
            if flag in removed.OPTIONS:
                raise UsageError(f"{self.prog}: {flag} was removed.", removed.OPTIONS[flag])
            if launcher := getattr(found, "launcher", None):
                known().check(launcher)  # of one that is broken no option is known
            meant = self._meant(unknown[0])
            self.error(
                f"there is no {unknown[0]}"
                + (f" (did you mean {meant}?)" if meant else f"; {self._takes()}")
            )
        return found

    def _meant(self, word: str) -> str:
        """What a word that it does not take was perhaps meant to be, or ``""``."""
        options = [o for action in self._actions for o in action.option_strings]
        if word.isdecimal() and "-n" in options:
            return f"-n {word}"
        longer = [o for o in options if word.startswith("--") and o.startswith(f"{word}-")]
        close = longer or difflib.get_close_matches(word, options, n=1)
        return close[0] if close else ""

    def _takes(self) -> str:
        takes = [one.shown if one.flag[0] == "-" else one.metavar for one in self.options]
        if len(takes) > MOST_LISTED:
            return f"{self.prog} --help all lists what it takes"
        return f"it takes {' '.join(takes) or 'nothing'}"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _reason(error: argparse.ArgumentError) -> str:
    """What argparse refuses, as one would say it."""
    option = (error.argument_name or "").split("/")[0]
    if error.message == "expected one argument":
        return f"{option} needs a value"
    if found := re.fullmatch(
        r"invalid (int|float|devices|seconds) value: (.*)", error.message, re.S
    ):
        return f"{option} must be {KINDS[found[1]]}, not {found[2]}"
    return f"{option}: {error.message}" if option else error.message


_QUOTED_OR_COMMENT = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.|(?<!\S)#""")


def without_comment(line: str) -> str:
    """A magic's line without the comment at its end, which begins with a word's ``#``."""
    for found in _QUOTED_OR_COMMENT.finditer(line):
        if found.group() == "#":
            return line[: found.start()].rstrip()
    return line


def start_parser(prog: str) -> Parser:
    """What a start takes; what was not typed is None."""
    return Parser(prog, f"{prog} -n 4 --devices-per-process 2")


def read_doctor(prog: str, line: str | Sequence[str]) -> argparse.Namespace | None:
    """What a start on other hosts would be given; None where this machine is asked for.

    Raises:
      UsageError: the words are not those of a start on other hosts.
    """
    example = f"{prog}   or   {prog} --launcher ssh --hosts h1,h2"
    parser = Parser(prog, example, "detach", "dry_run")  # nothing is started
    if not (line.split() if isinstance(line, str) else line):
        return None
    parsed = parser.read(line)
    if parsed.launcher in (None, "local") or parsed.detach or parsed.dry_run:
        parser.error("it takes the options of a start on other hosts, or nothing")
    return parsed


def run_parser() -> Parser:
    """What stands before the script: see ``split_run``."""
    return Parser("jaxcluster run", "jaxcluster run -n 4 train.py --steps 100", "detach")


def split_run(parser: Parser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of ``jaxcluster run`` before the script, and the script with its own.

    Of a module the latter begin with ``-m``.
    """
    options = {o: action for action in parser._actions for o in action.option_strings}
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return list(words[:at]), list(words[at + 1 :])
        if word in ("-m", "--module"):
            return list(words[:at]), ["-m", *words[at + 1 :]]
        if not word.startswith("-") or word in ("-", "-c"):
            return list(words[:at]), list(words[at:])
        action = options.get(word)
        at += 2 if action is not None and action.nargs != 0 else 1
    return list(words), []


def taken_from(parsed: argparse.Namespace) -> dict[str, str | list[str]]:
    """What was typed of the launchers' options, by their names; taken out of ``parsed``."""
    found = {name: vars(parsed).pop(name, None) for name in known().of_launchers}
    return {name: value for name, value in found.items() if value is not None}


def start_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of ``make_spec``."""
    of_launcher = taken_from(parsed)
    given = vars(parsed).copy()
    del given["dry_run"]
    if given["env"] is not None:
        given["env"] = dict(given["env"])
    return given | of_launcher


@functools.cache
def spmd_parser() -> Parser:
    parser = Parser("%%spmd", "%%spmd --ranks 0,2-3 --timeout 60")
    # Set by auto mode, whose cells have no %%spmd line above them.
    parser.add_argument("--no-magic-line", action="store_true")
    return parser


@functools.lru_cache(256)
def read_spmd(line: str) -> argparse.Namespace:
    """What a ``%%spmd`` line asks for; most lines have been read before. It must not be changed.

    Raises:
      Help, UsageError: as ``Parser.read``.
    """
    return spmd_parser().read(line)


_OPTION = re.compile(r"\s*(--?[a-z][a-z-]*)(=\S*)?(?!\S)")


def split_spmd(line: str) -> tuple[str, str]:
    """(the options, the expression) of a ``%spmd`` line, both as they were typed.

    Options are those of ``%%spmd`` alone: ``--x`` is an expression, too.

    Raises:
      Help: it was asked for.
      UsageError: the line begins with an option that there is not.
    """
    parser = spmd_parser()
    known = {flag: action for action in parser._actions for flag in action.option_strings}
    at = 0
    while found := _OPTION.match(line, at):
        if found[1] in ("-h", "--help"):
            raise Help(parser.format_help())
        if (action := known.get(found[1])) is None:
            break
        at = found.end()
        if (
            action.nargs is None  # --profile's folder is written with a "="
            and found[2] is None
            and (value := re.compile(r"\s+\S+").match(line, at))
        ):
            at = value.end()
    source = line[at:].lstrip()
    if (found := _OPTION.match(source)) and found[1].startswith("--") and not _is_python(source):
        parser.read(found[1])
    return line[:at].strip(), source


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def shards_line(line: str) -> tuple[str, set[str]]:
    """The (name, options) of a ``%shards`` line; quotes in ``params['w']`` stay as they are.

    Raises:
      UsageError: there is no name, or no such option.
    """
    example = "For example: %shards x   or   %shards params['w'] --check"
    words = without_comment(line).split(" ")
    if {"-h", "--help"} & set(words):
        raise Help(Parser("%shards").format_help())
    options = {word for word in words if word.startswith("--")}
    if unknown := options - {"--check", "--widget"}:
        raise UsageError(f"%shards: there is no {min(unknown)}.", example)
    name = " ".join(word for word in words if word not in options).strip()
    if not name:
        raise UsageError("%shards needs the name of a variable of the ranks.", example)
    return name, options


def axis_sizes(text: str | None, command: str) -> dict[str, int]:
    """What ``--mesh`` says: the sizes of meshes' axes, by name.

    Args:
      command: what it is typed behind.

    Raises:
      UsageError: it is not a list such as data=8,model=2.
    """
    sizes = {}
    for one in text.split(",") if text else ():
        name, _, size = one.partition("=")
        if not name.strip() or not size.strip().isdecimal() or not int(size):
            raise UsageError(
                f"--mesh {text}: {one!r} is not an axis with its size.",
                f"For example: {command} --mesh data=8,model=2",
            )
        sizes[name.strip()] = int(size)
    return sizes


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
