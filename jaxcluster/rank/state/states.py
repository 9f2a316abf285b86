"""What a rank answers when its variables are saved, and loaded again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxcluster.engine.control import Request
from jaxcluster.engine.names import LostNames, is_users
from jaxcluster.rank.state.file import BadFile, StateFile, file_name
from jaxcluster.rank.state.loading import Values, known, load
from jaxcluster.rank.state.pickling import PYTHON, Pickled
from jaxcluster.rank.state.settings import REGISTERED, SETTINGS, Settings
from jaxcluster.wire.ops import saving as ops
from jaxcluster.wire.ops.saving import Bind, Bound, Drop, Load, Loaded, MeshAxes, Saved, SavePlace


class NoRoom(Exception):
    """No place has room for it, or all places were removed, since nobody waits for it any more."""

    hint = ""  # the error is expected, and not logged


class States:
    """Answers for the namespace of one rank."""

    def __init__(self, rank: int, lost: LostNames, cell_numbers: dict[str, int]) -> None:
        self.rank = rank
        self.namespace: dict[str, Any] = {}
        self.lost = lost
        self.settings = Settings(cell_numbers)
        self._read: dict[str, Values] = {}
        self._dropped: deque[str] = deque(maxlen=64)
        self._saving = threading.Lock()

    def attach(self, shell: Any) -> None:
        """Cells run in this shell from now on."""
        self.namespace = shell.user_ns
        self.settings.attach(shell)

    def save(self, request: Request[ops.Save] | Request[ops.Checkpoint]) -> Saved:
        """``save``, whatever the main thread does; ``checkpoint`` on it, among the cells."""
        body = request.body
        with self._saving:
            given = self.rank, self.namespace, self.settings
            saved = save(body.places, *given, compare=body.compare)
        self.lost.tidy(self.namespace)
        saved.unbound.update(self.lost.reasons)
        return saved

    def load(self, request: Request[Load]) -> Loaded:
        """``load``: make all values, and hold them until ``bind``. On the main thread."""
        body = request.body
        if not body.files:
            return Loaded([])
        base, only = min(body.files) if body.own is None else body.own, None
        files = {r: StateFile(Path(folder) / file_name(r)) for r, folder in body.files.items()}
        for file in files.values():
            if (was := file.about["Python"]) != PYTHON:  # its code is another one
                raise BadFile(f"{file.path} was written by Python {was}, and this is {PYTHON}")
        if is_part := body.only is not None:
            only = {*body.only}
        elif body.own is None:
            only = known(files, base, body.num_processes)
        fitted = {(tuple(one.names), tuple(one.sizes)): one.after for one in body.meshes}
        found = load(files, base, self.namespace, fitted, only, is_part=is_part)
        self._read[body.token] = found
        if body.token in self._dropped:  # meanwhile
            self._forget(body.token)
        return Loaded(list(found.names), found.lost)

    def bind(self, request: Request[Bind]) -> Bound:
        """``bind``: all names that were read and are not lost. On the main thread."""
        body = request.body
        found = self._read.pop(body.token, None) or Values()
        names = {name: value for name, value in found.names.items() if name not in body.lost}
        for name in body.lost:
            self.namespace.pop(name, None)
        self.namespace.update(names)
        self.lost.add(body.lost, self.namespace)
        self.settings.show(found.settings, found.results)
        return Bound(list(names), found.left)

    def drop(self, request: Request[Drop]) -> None:
        """``drop``: what was read, or is being read, is not bound."""
        self._dropped.append(request.body.token)
        self._forget(request.body.token)

    def _forget(self, token: str) -> None:
        if (found := self._read.pop(token, None)) is not None:
            found.undo()


def save(
    places: Iterable[SavePlace],
    rank: int,
    namespace: dict[str, Any],
    settings: Settings,
    *,
    compare: bool = False,
) -> Saved:
    """Write a rank's file to the first place that has room.

    Raises:
      NoRoom: none has.
    """
    import jax

    names = {n: v for n, v in dict(namespace).items() if is_users(n, v)}
    pickled, whys = Pickled(names | settings.sections(), namespace), list[str]()
    for place in places:
        path = Path(place.folder) / file_name(rank)
        if place.room is not None and pickled.nbytes > place.room:
            whys.append(f"{place.folder} has room for {place.room >> 20} MiB")
            continue
        try:
            path.unlink(missing_ok=True)
            size = pickled.write(path, compare=compare)
            break
        except (OSError, BadFile) as error:
            whys.append(str(error))
            path.unlink(missing_ok=True)
    else:
        raise NoRoom(f"{pickled.nbytes >> 20} MiB found no room: {'; '.join(whys)}")
    of_all = {one for one in pickled.meshes if one.size == len(jax.devices())}
    axes = {(tuple(map(str, one.axis_names)), one.devices.shape) for one in of_all}
    return Saved(
        place.folder,
        [path.name],
        size,
        [name for name in pickled.values if name in names],
        {name: why for name, why in pickled.lost.items() if name in names},
        sorted(pickled.spanning & names.keys()),
        left={n.strip(): why for n, why in pickled.lost.items() if n in (SETTINGS, REGISTERED)},
        meshes=[MeshAxes(list(names), list(sizes)) for names, sizes in sorted(axes)],
    )
