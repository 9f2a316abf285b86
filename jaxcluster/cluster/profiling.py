"""Cells under JAX's own profiler: where their files go, and what opens them."""

from __future__ import annotations

import itertools
from pathlib import Path


def folder_of(name: str | Path | None) -> Path:
    """The folder of a profile, as an absolute path; without a name, a new one in the current."""
    if name:
        return Path(name).expanduser().absolute()
    names = (Path(f"profile-{number}").absolute() for number in itertools.count(1))
    return next(one for one in names if not one.exists())


def tell(folder: Path) -> str:
    """Where the files are, and what opens them."""
    return (
        f"Each rank's profile: {folder}/rank-N. To open them: xprof {folder}, or a "
        "perfetto_trace.json.gz at ui.perfetto.dev."
    )
