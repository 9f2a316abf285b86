"""Which profile a start takes, and what is in it.

The user's file comes first, then the site's, then that of the notebook's folder. The last may have
come with the notebook, from anywhere: its profiles are taken where they are named and no other
file has that name, and its default is told and not taken. docs/profiles.md says why.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxcluster.errors import UsageError
from jaxcluster.options import written
from jaxcluster.options.files import FOLDER, USER, ConfigFile, places, read, short
from jaxcluster.options.known import known
from jaxcluster.options.table import START, check_platform, kind_of
from jaxcluster.text import format_table

INHERITS = "inherits"
WITHOUT = f"{START} --no-profile starts without one."
EXAMPLE = """There are no profiles yet. A profile is a table of options in a file:

    # {path}
    [profile.team]
    launcher = "ssh"
    hosts = "h1:2,h2:2"

%jaxcluster start --profile team then uses it."""


@dataclass(frozen=True)
class Profile:
    """Options of a start that are in a file under one name, checked.

    Attributes:
      options: by the names of ``make_spec``'s arguments.
      places: of each of them, where it stands: ``~/jaxcluster.toml:3``.
      chain: the profiles that it inherits from, nearest first, each with its place.
    """

    name: str
    file: ConfigFile
    options: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    chain: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return self.file.at("profile", self.name)

    def line(self, hide: bool = False) -> str:
        return written.line(self.options, hide)

    def under(self, given: Mapping[str, Any]) -> written.Given:
        """Its options, where ``given`` says nothing else."""
        return written.laid_over(self.options, given)[0]

    def told(self, given: Mapping[str, Any], why: str = "") -> str:
        """What is said of it before a start: where it stands, and what it amounts to.

        Args:
          given: what was said beside it.
          why: what it was chosen by, where it was not named.
        """
        out = written.laid_over(self.options, given)[1]
        kind = kind_of(given.get("launcher"))
        without = f"; without {' '.join(out)}, which {kind} does not know" if out else ""
        where = ", ".join(filter(None, [why, self.place]))
        return f"Profile {self.name!r} ({where}): {self.line(hide=True) or 'no options'}{without}"

    def blamed(self, error: UsageError) -> UsageError:
        """The same error, with where the option that it is about stands."""
        about = [
            f"{flag} is set in {self.places[name]}."
            for name in self.places
            if f"{(flag := known().by_name[name].flag)} " in f"{error.message} "
            or f"{flag}=" in error.message
        ]
        said = about[0] if len(about) == 1 else ""
        hint = f"{said} Profile {self.name!r} ({self.place}) has: {self.line(hide=True)}"
        return UsageError(error.message, f"{error.hint}\n{hint.strip()}".strip())


class Profiles:
    """All profiles that can be named here."""

    def __init__(self, files: list[ConfigFile]) -> None:
        self.files = files

    # ------------------------------------------------------------------ by name

    def names(self) -> list[str]:
        """The names that ``--profile`` takes."""
        return sorted({name for file in self.files for name in file.tables})

    def place_of(self, name: str) -> str:
        """Where a profile stands: ``~/jaxcluster.toml:3``."""
        file = next(one for one in self.files if name in one.tables)
        return file.at("profile", name)

    def named(self, name: str) -> Profile:
        """A profile, with what it inherits.

        Raises:
          UsageError: there is none of that name, or it has what no start takes; with its line.
        """
        for file in self.files:
            if name in file.tables:
                return self._read(file, name, ())
        raise UsageError(
            f"There is no profile {name!r}{self._meant(name)}.",
            "\n".join([self._there(), *(f"{file.problem}." for file in self._wrong_files())]),
        )

    def chosen(self, name: str | None, is_off: bool = False) -> tuple[Profile | None, list[str]]:
        """(the profile of a start or None, what is to be said of the files beside it).

        Args:
          name: what was named; None takes the default, if there is one.
          is_off: no profile is wanted.

        Raises:
          UsageError: it is not there or can't be used; or none was named and the user's own file,
            which may have a default, can't be.
        """
        if is_off:
            if name is not None:
                raise UsageError("--profile and --no-profile can't be used together.", WITHOUT)
            return None, []
        notes = [
            f"Note: {file.problem}; this start does not need it." for file in self._wrong_files()
        ]
        if name is not None:
            return self.named(name), notes
        file = next((one for one in self.files if one.origin == USER), None)
        if file is not None and file.problem:
            raise UsageError(f"{file.problem}.", f"It may have a default profile. {WITHOUT}")
        try:
            default = self.default()
        except UsageError as error:
            raise UsageError(error.message, f"{error.hint}\n{WITHOUT}") from None
        if default is None and (proposed := self._proposed()) is not None:
            notes.append(
                f"Note: {proposed.at('default')} proposes a profile. To use it: {START} "
                f"--profile {proposed.default}"
            )
        return default, notes

    def default(self) -> Profile | None:
        """The profile that a start takes where none is named.

        Raises:
          UsageError: there is none of that name, or it can't be used.
        """
        file = self._choosing()
        if file is None or not file.default:
            return None
        trusted = Profiles([one for one in self.files if one.is_trusted])
        if file.default not in trusted.names():
            raise UsageError(
                f"{file.at('default')}: the default profile is {file.default!r}, which does not "
                f"exist{trusted._meant(file.default)}.",
                trusted._there(),
            )
        return trusted.named(file.default)

    def _choosing(self) -> ConfigFile | None:
        """The file whose default counts; ``default = ""`` in the user's takes the site's back."""
        return next((file for file in self.files if file.is_trusted and file.has_default), None)

    def _proposed(self) -> ConfigFile | None:
        """The folder's file, where it has a default that can be named."""
        return next(
            (
                file
                for file in self.files
                if file.origin == FOLDER and file.default and file.default in self.names()
            ),
            None,
        )

    def _wrong_files(self) -> list[ConfigFile]:
        return [file for file in self.files if file.problem]

    def _meant(self, name: str) -> str:
        close = difflib.get_close_matches(name, self.names(), n=1)
        return f" (did you mean {close[0]}?)" if close else ""

    def _there(self) -> str:
        if names := self.names():
            return f"There are: {', '.join(names)}. %jaxcluster profiles shows what each sets."
        return "%jaxcluster profiles shows where profiles are defined."

    # ------------------------------------------------------------------ what is in one

    def _read(self, file: ConfigFile, name: str, seen: tuple[tuple[str, str], ...]) -> Profile:
        table = file.tables[name]
        own: written.Given = {}
        at: dict[str, str] = {}
        for word, value in table.items():
            if word == INHERITS:
                continue
            place = file.at("profile", name, word)
            option = known().find(word)
            if option is None:
                raise _wrong(name, place, _unknown(word))
            if option.name in own:
                raise _wrong(name, place, f"{word} repeats {option.flag[2:]}")
            try:
                own[option.name] = option.load(value)
            except ValueError as error:
                what = f"{word} must be {error}, not {written.shown(option, value)}"
                raise _wrong(name, place, what) from None
            at[option.name] = place
        parent = self._parent(file, name, (*seen, (file.origin, name)))
        if parent is not None:
            own = parent.under(own)
            at = {argument: at.get(argument) or parent.places[argument] for argument in own}
        chain = (f"{parent.name!r} ({parent.place})", *parent.chain) if parent is not None else ()
        profile = Profile(name, file, own, at, chain)
        _check(profile)
        return profile

    def _parent(
        self, file: ConfigFile, name: str, seen: tuple[tuple[str, str], ...]
    ) -> Profile | None:
        """What a profile inherits: of its own name, that of a later file.

        A file that is trusted inherits from such files alone.
        """
        wanted = file.tables[name].get(INHERITS)
        if wanted is None:
            return None
        place = file.at("profile", name, INHERITS)
        if not isinstance(wanted, str):
            what = f"{INHERITS} must be the name of a profile, not {written.shown(None, wanted)}"
            raise _wrong(name, place, what)
        may = [one for one in self.files if one.is_trusted or not file.is_trusted]
        if wanted == name:
            may = may[may.index(file) + 1 :]
        found = next((one for one in may if wanted in one.tables), None)
        if found is None:
            raise _wrong(
                name,
                place,
                f"it inherits {wanted!r}, which does not exist{Profiles(may)._meant(wanted)}",
            )
        if (found.origin, wanted) in seen:
            way = " -> ".join([*(one for _, one in seen), wanted])
            raise _wrong(name, place, f"profiles inherit each other: {way}")
        return self._read(found, wanted, seen)

    # ------------------------------------------------------------------ shown

    def table(self) -> str:
        """What ``%jaxcluster profiles`` shows: of each its place, and what it sets."""
        rows = []
        default = self.default_name()
        for file in self.files:
            for name in file.tables:
                hidden = next(one for one in self.files if name in one.tables) is not file
                what = self._sets(file, name)
                if hidden:
                    what = "hidden: a file above has one with that name"
                is_default = name == default and not hidden
                place = file.at("profile", name)
                rows.append(("*" if is_default else "", name, place, what))
        notes = [f"{file.problem}." for file in self._wrong_files()]
        try:
            self.default()
        except UsageError as error:
            notes.append(error.message)
        if default and any(row[0] for row in rows):
            notes.append(f"* {START} uses it by default; --no-profile uses none.")
        elif (proposed := self._proposed()) is not None and not default:
            notes.append(
                f"{proposed.at('default')} proposes {proposed.default!r} as default. A file "
                f"beside a notebook can't set the default: {START} --profile {proposed.default}"
            )
        if not rows:
            path = places(os.environ, None)[0][1]
            return "\n".join([*notes, EXAMPLE.format(path=short(path))])
        shown = format_table([("", "PROFILE", "DEFINED IN", "SETS"), *rows])
        return "\n".join([*shown, *([""] if notes else []), *notes])

    def default_name(self) -> str:
        """What a start takes where none is named; "" for none."""
        file = self._choosing()
        is_there = file is not None and any(
            file.default in one.tables for one in self.files if one.is_trusted
        )
        return file.default if file is not None and is_there else ""

    def problems(self) -> list[str]:
        """What is wrong with any of them, a sentence each."""
        found = [f"{file.problem}." for file in self._wrong_files()]
        looks: list[Callable[[], object]] = [self.default]
        for file in self.files:
            looks += [functools.partial(self._read, file, name, ()) for name in file.tables]
        for look in looks:
            try:
                look()
            except UsageError as error:
                found.append(error.message)
        return list(dict.fromkeys(found))

    def _sets(self, file: ConfigFile, name: str) -> str:
        try:
            return self._read(file, name, ()).line(hide=True) or "nothing"
        except UsageError as error:
            return f"can't be used: {error.message.partition(': ')[2]}"

    def explained(self, name: str) -> str:
        """What ``%jaxcluster profiles NAME`` shows: where it stands, and the line that it is."""
        profile = self.named(name)
        above = f", inherits {', '.join(profile.chain)}" if profile.chain else ""
        return (
            f"Profile {name!r}, {profile.place}{above}\n{START} {profile.line(hide=True)}".rstrip()
        )


def load(environ: Mapping[str, str] = os.environ, folder: str | None = None) -> Profiles:
    """The profiles of this user, this site and this folder.

    Args:
      folder: the notebook's; where the process is by default.
    """
    if folder is None:
        try:
            folder = os.getcwd()
        except OSError:  # it was removed
            folder = None
    found = (read(origin, path) for origin, path in places(environ, folder))
    return Profiles([file for file in found if file is not None])


def _unknown(word: str) -> str:
    flags = [option.flag.lstrip("-") for option in known().in_profiles.values()]
    close = difflib.get_close_matches(word.replace("_", "-"), flags, n=1)
    if word.replace("_", "-") in ("profile", "dry-run", "no-profile"):
        return f"{word} can only be typed when you start"
    return f"{START} has no option {word!r}" + (f" (did you mean {close[0]}?)" if close else "")


def _check(profile: Profile) -> None:
    """Refuse what no start with it could take.

    Raises:
      UsageError: there is no such launcher or platform, or an option is another launcher's.
    """
    given = {name: value for name, value in profile.options.items() if value is not False}
    about = "launcher"
    try:
        if given.get("launcher", "auto") != "auto":  # which decides at the start
            own = [name for name in given if known().by_name[name].launchers]
            known().check(given["launcher"], own)
        if "platform" in given:
            about = "platform"
            check_platform(given["platform"])
    except UsageError as error:
        foreign = (n for n in given if f" {known().by_name[n].flag};" in error.message)
        place = profile.places[next(foreign, about)]
        what = error.message.rstrip(".")
        raise _wrong(profile.name, place, what, error.hint) from None


def _wrong(name: str, place: str, what: str, hint: str = "") -> UsageError:
    hint = hint or f"{START} --help explains each option; a profile has the same, without dashes."
    return UsageError(f"Profile {name!r} can't be used: {place}: {what}.", hint)
