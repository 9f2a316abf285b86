"""What a rank answers when its variables are to be saved or brought back."""

from __future__ import annotations

import ast
import time
from collections.abc import Mapping
from typing import Any

from jaxcluster.engine.state.far import Hosts
from jaxcluster.engine.state.keeper import on_keep
from jaxcluster.engine.state.loading import bind, load
from jaxcluster.engine.state.resizing import Unclear, check_meshes
from jaxcluster.engine.state.restoring import check_fits
from jaxcluster.engine.state.saved import Place, read, write_where_room
from jaxcluster.engine.state.saving import save
from jaxcluster.engine.state.settings import Settings

__all__ = ["on_keep", "on_restore", "on_snapshot"]


def on_snapshot(
    namespace: dict[str, Any],
    rank: int,
    body: Any,
    before: Mapping[str, Any] | None = None,
    lost: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> Any:
    """``snapshot`` {"places": [[folder, room]], "digests": bool, "cell": seq}: save to a file.

    On any thread. It is in one of these folders (or in ``path``), and was read back, when this
    returns. With ``resize`` {"devices", "mesh"} the reply says, as ``unclear``, why it is not clear
    what becomes of the meshes on so many devices, and what to type.

    Args:
      before: what the names were bound to before that cell; None if that is not known.
      lost: names that were lost earlier, and how (see ``LostNames``).
      settings: those of the process.

    Replies with ``Saved.report``, ``folder``, ``file_nbytes`` and ``seconds``.
    """
    started = time.perf_counter()
    saved = save(
        namespace, rank, digests=body.get("digests", False), before=before, settings=settings
    )
    saved.unbound = dict(lost or {})
    places = body.get("places") or [[body["path"]]]
    path = write_where_room(saved, rank, [Place(*place) for place in places])
    report = saved.report()
    report["before"]["known"] = before is not None
    if (resize := body.get("resize")) is not None:
        try:
            check_meshes(saved, resize["devices"], resize["mesh"])
        except Unclear as error:
            report["unclear"] = [str(error), error.hint]
    where = {"folder": str(path.parent), "file_nbytes": path.stat().st_size}
    return {**report, **where, "seconds": time.perf_counter() - started}


def on_restore(
    namespace: dict[str, Any], rank: int, body: Any, settings: Settings | None = None
) -> Any:
    """``restore``: bind what was saved.

    The body has the ``path`` of the folder (of one on another host ``far.Where``), and may have
    ``from_rank`` (another rank's state is taken), ``skip`` (settings that are not set), ``names``
    (only these), ``before`` (these as they were before the cell) and ``texts`` (names: what Python
    writes for their values).
    With ``settings`` false no setting is set.

    Replies with ``restored``, ``lost`` and ``left`` (a name's, or a setting's: why), ``unsaved``
    (what could not be saved: why) and ``seconds``.
    """
    started = time.perf_counter()
    source = body.get("from_rank")
    settings = settings if body.get("settings", True) else None
    with Hosts() as hosts:
        saved = read(hosts.state(body["path"], rank if source is None else source))
    check_fits(saved)
    names, before, skip = body.get("names"), body.get("before", ()), body.get("skip", ())
    loaded = load(saved, namespace, names, before, settings, skip)
    left = bind(loaded, namespace, settings)
    own = {name: ast.literal_eval(text) for name, text in body.get("texts", {}).items()}
    namespace.update(own)
    return {
        "restored": sorted({*loaded.values, *own}),
        "lost": loaded.lost,
        "left": left,
        "unsaved": {**saved.now.lost, **saved.left},
        "seconds": time.perf_counter() - started,
    }
