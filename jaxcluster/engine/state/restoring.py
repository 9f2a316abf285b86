"""What was saved comes back on all ranks or on none: each reads it first, and binds it when told.

Between the two nothing of it is to be seen: no name is bound, and no setting is another.
"""

from __future__ import annotations

import ast
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from jaxcluster.engine.lost_names import LostNames
from jaxcluster.engine.state import resizing
from jaxcluster.engine.state.loading import Loaded, bind, load
from jaxcluster.engine.state.remote_files import Hosts
from jaxcluster.engine.state.saved import CannotRestore, Glance, Saved, read, state_path
from jaxcluster.engine.state.saving import versions
from jaxcluster.engine.state.settings import Settings
from jaxcluster.wire.ops.state import (
    RestoreBind,
    RestoreBound,
    RestoreLook,
    RestoreLooked,
    Take,
    Where,
)

HELD_S = 900.0  # by then its notebook has ended in between


class Restoring:
    """What a rank has read, until it is bound or dropped."""

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[Loaded, float]] = {}
        self._dropped: deque[str] = deque(maxlen=64)

    def look(
        self,
        namespace: dict[str, Any],
        rank: int,
        body: RestoreLook,
        settings: Settings | None = None,
    ) -> RestoreLooked:
        """``restore_look``: read it, and hold it under the token. On the main thread.

        Raises:
          CannotRestore: it can't be restored here, or was given up meanwhile.
        """
        token = body.token

        def check() -> None:
            if token in self._dropped:
                raise CannotRestore("it was cancelled")

        self._loaded.clear()
        check()
        told: dict[str, Any] = {}
        with Hosts() as hosts:
            if take := body.take:
                loaded = _take(namespace, rank, take, hosts, settings, check)
            elif folders := body.folders or _folders_of_others(body.path):
                files = {one: Glance(hosts.state(folder, one)) for one, folder in folders.items()}
                loaded, told = resizing.look(
                    namespace, rank, files, body.mesh, settings, check, body.chosen
                )
            else:
                loaded = _take(namespace, rank, Take(body.path), hosts, settings, check)
        check()
        self._loaded[token] = loaded, time.monotonic()
        saved = loaded.loader.saved
        unsaved = {**saved.now.lost, **saved.left}
        return RestoreLooked(sorted(loaded.values), dict(loaded.lost), unsaved, **told)

    def bind(
        self,
        namespace: dict[str, Any],
        body: RestoreBind,
        lost: LostNames,
        settings: Settings | None,
    ) -> RestoreBound:
        """``restore_bind``: bind it."""
        loaded, _ = self._loaded.pop(body.token)
        gone = {*body.unbind, *loaded.lost}
        for name in gone:
            namespace.pop(name, None)
        loaded.values = {n: value for n, value in loaded.values.items() if n not in gone}
        left = bind(loaded, namespace, settings)
        lost.add(body.lost, namespace)
        return RestoreBound(left, sorted(loaded.values))

    def drop(self, token: str) -> None:
        """Give it up, also while it is being read. Any thread."""
        self._dropped.append(token)
        self._loaded.pop(token, None)

    def tidy(self) -> None:
        """Drop what nobody comes for any more."""
        for token, (_, since) in list(self._loaded.items()):
            if time.monotonic() - since > HELD_S:
                self.drop(token)


def _take(
    namespace: dict[str, Any],
    rank: int,
    take: Take,
    hosts: Hosts,
    settings: Settings | None,
    check: Callable[[], None],
) -> Loaded:
    """What a rank is to have of a file of as many ranks as there are now."""
    source = rank if take.from_rank is None else take.from_rank
    saved = read(hosts.state(take.path, source), check)
    check_fits(saved)
    loaded = load(saved, namespace, take.names, take.before, settings, take.skip, check)
    loaded.values |= {name: ast.literal_eval(text) for name, text in take.texts.items()}
    return loaded


def _folders_of_others(path: str) -> dict[int, Where]:
    """Where the ranks' files are, if those are not as many as there are now; else nothing."""
    import jax

    if not (first := state_path(path, 0)).exists():
        return {}  # it is missed by whoever reads it
    saved = Glance(first).saved
    check_versions(saved)
    if saved.process_count == jax.process_count():
        return {}
    return dict.fromkeys(range(saved.process_count), path)


def check_fits(saved: Saved) -> None:
    """Whether what was saved can come back on as many ranks with this jax.

    Raises:
      CannotRestore: it can't.
    """
    import jax

    if saved.process_count != jax.process_count():
        raise CannotRestore(
            f"it was saved by {saved.process_count} processes, and this cluster has "
            f"{jax.process_count()}"
        )
    check_versions(saved)


def check_versions(saved: Saved) -> None:
    """Whether what was saved is of this jax and Python.

    Raises:
      CannotRestore: it is not.
    """
    if saved.versions != versions():
        there = ", ".join(f"{k} {v}" for k, v in saved.versions.items())
        raise CannotRestore(f"it was saved with {there}, which this cluster does not have")
