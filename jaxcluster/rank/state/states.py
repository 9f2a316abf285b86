"""What a rank answers when its variables are saved, and loaded again."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from typing import Any

from jaxcluster.engine.control import Request
from jaxcluster.engine.lost_names import LostNames
from jaxcluster.rank.state.file import BadFile, StateFile, file_name
from jaxcluster.rank.state.loading import Values, known, load
from jaxcluster.rank.state.saving import PYTHON, save
from jaxcluster.rank.state.settings import Settings
from jaxcluster.wire.ops.saving import Bind, Bound, Checkpoint, Drop, Load, Loaded, Save, Saved


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

    def save(self, request: Request[Save] | Request[Checkpoint]) -> Saved:
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
