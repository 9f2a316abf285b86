"""What a rank answers when its variables are to be saved or brought back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from jaxcluster.engine.state.loading import load
from jaxcluster.engine.state.saved import CannotRestore, read, state_path, write
from jaxcluster.engine.state.saving import save, versions
from jaxcluster.engine.state.settings import Settings


def on_snapshot(
    namespace: dict[str, Any],
    rank: int,
    body: Any,
    before: Mapping[str, Any] | None = None,
    lost: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> Any:
    """``snapshot`` {"path": folder, "digests": bool, "cell": seq}: save to a file, on any thread.

    Args:
      before: what the names were bound to before that cell; None if that is not known.
      lost: names that were lost earlier, and how (see ``LostNames``).
      settings: those of the process.

    Replies with ``Saved.report`` and ``seconds``.
    """
    started = time.perf_counter()
    saved = save(
        namespace, rank, digests=body.get("digests", False), before=before, settings=settings
    )
    saved.unbound = dict(lost or {})
    write(saved, state_path(body["path"], rank))
    report = saved.report()
    report["before"]["known"] = before is not None
    return {**report, "seconds": time.perf_counter() - started}


def on_restore(
    namespace: dict[str, Any], rank: int, body: Any, settings: Settings | None = None
) -> Any:
    """``restore``: bind what was saved.

    The body has the ``path`` of the folder, and may have ``from_rank`` (another rank's state is
    taken), ``skip`` (settings that are not set), ``names`` (only these) and ``before``
    (these as they were before the cell).

    Replies with ``restored``, ``lost`` and ``left`` (a name's, or a setting's: why), ``unsaved``
    (what could not be saved: why) and ``seconds``.
    """
    import jax

    started = time.perf_counter()
    source = body.get("from_rank")
    saved = read(state_path(body["path"], rank if source is None else source))
    if saved.process_count != jax.process_count():
        raise CannotRestore(
            f"it was saved by {saved.process_count} processes, and these are {jax.process_count()}"
        )
    if saved.versions != versions():
        there = ", ".join(f"{k} {v}" for k, v in saved.versions.items())
        raise CannotRestore(f"it was saved with {there}, which this cluster does not have")
    names, before, skip = body.get("names"), body.get("before", ()), body.get("skip", ())
    restored, lost, left = load(saved, namespace, names, before, settings, skip)
    return {
        "restored": restored,
        "lost": lost,
        "left": left,
        "unsaved": {**saved.now.lost, **saved.left},
        "seconds": time.perf_counter() - started,
    }
