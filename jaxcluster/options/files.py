"""The files with profiles: where they are, and what is read from each.

A file that can't be used does not raise: it says why, with the line, and whoever needs it asks.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxcluster.text import visible

NAME = "jaxcluster.toml"
SITE = "JAXCLUSTER_SITE_CONFIG"  # the path of a file, instead of the site's
SITE_FILE = f"/etc/jaxcluster/{NAME}"
MOST_BYTES = 1 << 20
LINES_COST = 1 << 20  # characters that are parsed to find out where keys stand: about 0.5 s
PARSE_COST = 100  # of each time, in these

USER, ADMIN, FOLDER = "user", "site", "folder"

_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True)
class ConfigFile:
    """One ``jaxcluster.toml``.

    Attributes:
      origin: whose it is: the user's, the site's, or of the folder that the notebook lies in.
      tables: what is in each profile, unchecked.
      default: the name of the profile that a start without one is to take; "" for none.
      text: of a file that is TOML.
      problem: why it can't be used, or not all of it; a sentence without its end.
    """

    origin: str
    path: Path
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    default: str = ""
    has_default: bool = False
    text: str = ""
    problem: str = ""

    @property
    def is_trusted(self) -> bool:
        """Whether it may choose a profile that nobody has named; see docs/profiles.md."""
        return self.origin != FOLDER

    @functools.cached_property
    def lines(self) -> Mapping[tuple[str, ...], int]:
        """Where keys stand, from 1 on, by their paths: ``("profile", "team", "hosts")``.

        It costs more than all else of a file, so it is found where it is asked for.
        """
        return _lines(self.text)

    def at(self, *keys: str) -> str:
        """``~/jaxcluster.toml:3``."""
        number = self.lines.get(keys) or self.lines.get(keys[:-1])
        return short(self.path) + (f":{number}" if number else "")


def short(path: Path) -> str:
    """A path as it is shown, with ``~`` for the home."""
    home = os.path.expanduser("~")
    text = str(path)
    is_below = home != "/" and text.startswith(f"{home}/")
    return visible(f"~{text[len(home) :]}" if is_below else text)


def places(environ: Mapping[str, str], folder: str | None) -> list[tuple[str, Path]]:
    """(whose, path) of each file that may be there; the first one that has a profile has it.

    Args:
      folder: the notebook's; None where it was removed.
    """
    home = os.path.expanduser("~")
    found = []
    config = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):  # as the XDG specification has it
        config = os.path.join(home, ".config")
    if os.path.isabs(config):
        found.append((USER, Path(config, "jaxcluster", NAME)))
    site = environ.get(SITE, "")
    # A relative one would be whatever file lies where the notebook does.
    found.append((ADMIN, Path(site if os.path.isabs(site) else SITE_FILE)))
    nearest = _nearest(Path(folder), Path(home)) if folder is not None else None
    # It may be one of the others: a notebook in the user's configuration folder.
    if nearest is not None and not any(_is_same(nearest, path) for _, path in found):
        found.append((FOLDER, nearest))
    return found


def _nearest(folder: Path, home: Path) -> Path | None:
    """The file of this folder or of the nearest one above it, inside of the same project.

    That ends at the root of the repository, without one at the home; outside of both it is this
    folder alone, since anybody may own those above (/tmp). So it is where another user has made the
    repository, as git itself has it: that may be all of /tmp.
    """
    above = [folder, *folder.parents]
    root = next((at for at in above if os.path.lexists(at / ".git")), None)
    if home in above[:-1] and (root is None or above.index(root) > above.index(home)):
        last = home
    elif root is not None and _owner(root / ".git") in (os.geteuid(), 0):
        last = root
    else:
        last = folder
    inside = above[: above.index(last) + 1]
    return next((at / NAME for at in inside if os.path.lexists(at / NAME)), None)


def _owner(path: Path) -> int | None:
    try:
        return os.lstat(path).st_uid
    except OSError:  # it has gone
        return None


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one == other


def read(origin: str, path: Path) -> ConfigFile | None:
    """What is in a file; None if there is no such file."""
    try:
        text = _text(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return ConfigFile(origin, path, problem=f"{short(path)} can't be read: {error.strerror}")
    except ValueError as error:
        return ConfigFile(origin, path, problem=f"{short(path)} {error}")
    try:
        whole = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return ConfigFile(origin, path, problem=_syntax(path, text, str(error)))
    file = ConfigFile(origin, path, text=text)
    problem = _wrong_key(file, whole)
    found = whole.get("profile", {})
    tables = {}
    for name, table in found.items() if isinstance(found, dict) else ():
        if isinstance(table, dict) and _PROFILE_NAME.fullmatch(name):
            tables[name] = table
    default = whole.get("default", "")
    return ConfigFile(
        origin,
        path,
        tables,
        default if isinstance(default, str) else "",
        "default" in whole,
        text,
        problem,
    )


def _text(path: Path) -> str:
    """The file's text.

    Raises:
      OSError: it is not there, or can't be read.
      ValueError: it is not a text file; says what it is.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise ValueError("is a folder, and should be a file")
    if not stat.S_ISREG(mode):  # reading a pipe would wait
        raise ValueError("is not a regular file")
    with open(path, "rb") as opened:
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError("has more than 1 MiB: that is not a file of profiles")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"is not UTF-8 text (line {line})") from None


def _syntax(path: Path, text: str, said: str) -> str:
    at = _AT.search(said)
    line = int(at[1]) if at and at[1] else text.rstrip("\n").count("\n") + 1 if at else None
    where = f"{short(path)}:{line}" if line is not None else short(path)
    column = f" (column {at[2]})" if at and at[2] else ""
    return f"{where} is not TOML: {said[: at.start()] if at else said}{column}"


def _wrong_key(file: ConfigFile, whole: Mapping[str, Any]) -> str:
    """The first of its words that can't be there, told; "" if there is none."""
    for key, value in whole.items():
        if key == "default":
            if not isinstance(value, str):
                return f'{file.at(key)}: default must be the name of a profile: default = "team"'
        elif key != "profile":
            close = difflib.get_close_matches(key, ["profile", "default"], n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            return (
                f"{file.at(key)}: there is no {key!r}{meant}; it holds tables [profile.NAME], and "
                'default = "NAME" above them'
            )
        elif not isinstance(value, dict):
            return f"{file.at(key)}: profiles are tables: [profile.NAME]"
    for name, table in whole.get("profile", {}).items():
        if not isinstance(table, dict):
            return (
                f"{file.at('profile', name)}: {name!r} has no table: write [profile.NAME] above "
                "the options of each profile"
            )
        if not _PROFILE_NAME.fullmatch(name):
            return (
                f"{file.at('profile', name)}: {name!r} is not a name for a profile: letters, "
                "digits, and . _ - after the first"
            )
    return ""


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Where each key of a valid TOML text begins.

    tomllib does not say. A statement of TOML ends at the end of a line and none that is incomplete
    can be parsed, so each is found by parsing what begins where the one before has ended. One of
    many lines is parsed as often, so that is done up to ``LINES_COST``: a file may come from
    anywhere, and keys further down have no lines then.
    """
    found: dict[tuple[str, ...], int] = {}
    above: tuple[str, ...] = ()
    begun, part, cost = 1, "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not part:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            begun = number
        part += line + "\n"
        cost += len(part) + PARSE_COST
        if cost > LINES_COST:
            break
        try:
            keys = _paths(tomllib.loads(part))
        except (ValueError, RecursionError):
            continue
        if part.lstrip().startswith("["):
            above = keys[-1] if keys else ()
            keys = [above[:n] for n in range(1, len(above) + 1)]
        else:
            keys = [(*above, *key) for key in keys]
        for key in keys:
            found.setdefault(key, begun)
        part = ""
    return found


def _paths(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of a statement, those above first."""
    found = []
    for key, value in table.items():
        found.append((*above, key))
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict):
            found += _paths(inner, (*above, key))
    return found
