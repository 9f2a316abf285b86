"""What a rank answers when its variables are to be saved or brought back."""

from __future__ import annotations

import ast
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxcluster.engine.state.copier import on_keep
from jaxcluster.engine.state.loading import bind, load
from jaxcluster.engine.state.remote_files import Hosts
from jaxcluster.engine.state.resizing import Unclear, check_meshes
from jaxcluster.engine.state.restoring import check_fits
from jaxcluster.engine.state.saved import read, write_where_room
from jaxcluster.engine.state.saving import save
from jaxcluster.engine.state.settings import Settings
from jaxcluster.host import limits
from jaxcluster.wire.ops.state import Restore, RestoreDone, SaveReport, Snapshot

__all__ = ["on_keep", "on_restore", "on_snapshot"]


@limits.lifted()
def on_snapshot(
    namespace: dict[str, Any],
    rank: int,
    body: Snapshot,
    before: Mapping[str, Any] | None = None,
    lost: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> SaveReport:
    """``snapshot``: save to a file. On any thread.

    It is in one of the folders, and was read back, when this returns.

    Args:
      before: what the names were bound to before that cell; None if that is not known.
      lost: names that were lost earlier, and how (see ``LostNames``).
      settings: those of the process.
    """
    started = time.perf_counter()
    saved = save(namespace, rank, digests=body.digests, before=before, settings=settings)
    saved.unbound = dict(lost or {})
    path = write_where_room(saved, rank, body.places)
    unclear = []
    if (resize := body.resize) is not None:
        try:
            check_meshes(saved, resize.devices, resize.mesh)
        except Unclear as error:
            unclear = [str(error), error.hint]
    report = saved.report(path, before is not None)
    return replace(report, unclear=unclear, seconds=time.perf_counter() - started)


def on_restore(
    namespace: dict[str, Any], rank: int, body: Restore, settings: Settings | None = None
) -> RestoreDone:
    """``restore``: bind what was saved."""
    started = time.perf_counter()
    source = body.from_rank
    settings = settings if body.settings else None
    with Hosts() as hosts:
        saved = read(hosts.state(body.path, rank if source is None else source))
    check_fits(saved)
    loaded = load(saved, namespace, body.names, body.before, settings, body.skip)
    left = bind(loaded, namespace, settings)
    own = {name: ast.literal_eval(text) for name, text in body.texts.items()}
    namespace.update(own)
    return RestoreDone(
        restored=sorted({*loaded.values, *own}),
        lost=dict(loaded.lost),
        left=left,
        unsaved={**saved.now.lost, **saved.left},
        seconds=time.perf_counter() - started,
    )
