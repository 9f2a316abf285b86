"""What a rank answers when its variables are saved, and loaded again."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from jaxcluster.engine.control import Request
from jaxcluster.engine.names import LostNames, is_users
from jaxcluster.engine.private.pytrees import register
from jaxcluster.rank import settings
from jaxcluster.rank.settings import OUT, REGISTERED, SETTINGS
from jaxcluster.rank.state import classes, pickles
from jaxcluster.rank.state.file import BadFile, StateFile, file_name
from jaxcluster.rank.state.pickles import Pickled
from jaxcluster.wire.ops import saving as ops
from jaxcluster.wire.ops.saving import Bind, Drop, Load, Made, Saved

SECTIONS = SETTINGS, REGISTERED


class Values(NamedTuple):
    """What was read, and is held until it is bound; settings that could not be set, and why."""

    names: dict[str, Any]
    sections: dict[str, Any]
    left: dict[str, str]
    before: dict[Any, Any]  # the settings


class States:
    """Answers for the namespace of one rank."""

    def __init__(self, rank: int, lost: LostNames, cell_numbers: dict[str, int]) -> None:
        self.rank = rank
        self.namespace: dict[str, Any] = {}
        self.lost = lost
        self.settings = settings.Settings(cell_numbers)
        self._read: dict[str, Values] = {}
        self._dropped: deque[str] = deque(maxlen=64)
        self._saving = threading.Lock()

    def attach(self, shell: Any) -> None:
        """Cells run in this shell from now on."""
        self.namespace = shell.user_ns
        self.settings.attach(shell)

    def save(self, request: Request[ops.Save] | Request[ops.Checkpoint]) -> Saved:
        """``save``, whatever the main thread does; ``checkpoint`` on it, among the cells.

        Raises:
          BadFile: no place has room.
        """
        with self._saving:
            names = {n: v for n, v in dict(self.namespace).items() if is_users(n, v)}
            pickled = Pickled(names | self.settings.sections(), self.namespace)
            path, size = self._write(pickled, request.body)
        self.lost.tidy(self.namespace)
        return Saved(
            str(path.parent),
            [path.name],
            size,
            [name for name in pickled.values if name in names],
            {name: why for name, why in pickled.lost.items() if name in names},
            sorted(pickled.spanning & names.keys()),
            dict(self.lost.reasons),
            {name.strip(): why for name, why in pickled.lost.items() if name in SECTIONS},
        )

    def _write(self, pickled: Pickled, body: ops.Save | ops.Checkpoint) -> tuple[Path, int]:
        """Write the file to the first place that has room; returns its path and size."""
        nbytes, whys = pickled.nbytes, list[str]()
        for place in body.places:
            path = Path(place.folder) / file_name(self.rank)
            if place.room is not None and nbytes > place.room:
                whys.append(f"{place.folder} has room for {place.room >> 20} MiB")
                continue
            try:
                path.unlink(missing_ok=True)
                return path, pickled.write(path, compare=body.compare)
            except (OSError, BadFile) as error:  # or the place was removed: nobody waits for it
                whys.append(str(error))
                path.unlink(missing_ok=True)
        raise BadFile(f"{nbytes >> 20} MiB found no room: {'; '.join(whys)}")

    def load(self, request: Request[Load]) -> Made:
        """``load``: make all values, and hold them until ``bind``. On the main thread.

        Settings are set at once, since they change what values become.

        Raises:
          BadFile: a file was changed.
        """
        import jax

        body = request.body
        if not body.files:
            return Made([])
        base = min(body.files) if body.own is None else body.own
        files = {r: StateFile(Path(folder) / file_name(r)) for r, folder in body.files.items()}
        for file in files.values():
            if (was := file.about["Python"]) != sys.version_info[:2]:  # its code is another one
                told = "{}.{}, and this is {}.{}".format(*was, *sys.version_info)
                raise BadFile(f"{file.path} was written by Python {told}")
        is_part, only = body.only is not None, body.only
        if body.own is None:  # what can't differ between ranks, and was equal on all
            about = [file.about for file in files.values()]
            only = files[base].about["common"]
            if body.num_processes != jax.process_count() and len(files) == body.num_processes:
                digests = files[base].about["digests"].items()
                only += [
                    n for n, own in digests if own and {a["digests"].get(n) for a in about} == {own}
                ]
        found = Values({}, {}, {}, settings.now())

        def use(name: str, value: Any) -> None:
            if name == SETTINGS and not is_part:
                settings.know_cells(value["cells"])
                found.left.update(settings.apply(value["changed"]))
                found.sections[name] = value
            elif name == REGISTERED and not is_part:
                for one in value:
                    with contextlib.suppress(Exception):  # JAX refuses it
                        register(*one)

        classes.kept.set(set() if is_part else None)
        try:
            made, lost = pickles.load(files, base, self.namespace, use)
        except BaseException:
            settings.undo(found.before)
            raise
        for name, value in made.items():
            if name not in SECTIONS and (only is None or name in only):
                (found.sections if name.startswith(OUT) else found.names)[name] = value
        if only is not None and SETTINGS in found.sections:
            del found.sections[SETTINGS]["random"]
        self._hold(body.token, found)
        return Made([*found.names], lost)

    def hold(self, token: str, names: dict[str, Any]) -> None:
        """Hold what was pushed until ``bind``."""
        self._hold(token, Values(names, {}, {}, {}))

    def _hold(self, token: str, found: Values) -> None:
        self._read[token] = found
        if token in self._dropped:  # meanwhile
            self._forget(token)

    def bind(self, request: Request[Bind]) -> Made:
        """``bind``: all names that were read and are not lost. On the main thread."""
        body = request.body
        found = self._read.pop(body.token, None) or Values({}, {}, {}, {})
        names = {name: value for name, value in found.names.items() if name not in body.lost}
        for name in body.lost:
            self.namespace.pop(name, None)
        self.namespace.update(names)
        self.lost.add(body.lost, self.namespace)
        self.settings.show(found.sections)
        return Made([*names], found.left)

    def drop(self, request: Request[Drop]) -> None:
        """``drop``: what was read, or is being read, is not bound."""
        self._dropped.append(request.body.token)
        self._forget(request.body.token)

    def _forget(self, token: str) -> None:
        if (found := self._read.pop(token, None)) is not None and found.before:
            settings.undo(found.before)
