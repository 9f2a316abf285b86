"""What a rank answers when its variables are to be saved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxcluster.engine.state.resizing import Unclear, check_meshes
from jaxcluster.engine.state.saved import write_where_room
from jaxcluster.engine.state.saving import save
from jaxcluster.engine.state.settings import Settings
from jaxcluster.host import limits
from jaxcluster.wire.ops.state import SaveReport, Snapshot


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
