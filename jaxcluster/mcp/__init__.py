"""Clusters for an assistant in the user's editor: ``jaxcluster mcp``, over standard input.

``server`` has the tools, by the Model Context Protocol's own SDK, which is an optional dependency.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

from jaxcluster import arguments
from jaxcluster.errors import UsageError

SDK = 2  # its major version


def main(words: list[str]) -> None:
    """``jaxcluster mcp [--allow-run]``: serve until standard input ends.

    Raises:
      UsageError: the SDK is not installed, or the words are not these.
    """
    allow_run = bool(arguments.Parser("jaxcluster mcp").read(words).allow_run)
    is_there = importlib.util.find_spec("mcp") is not None
    found = importlib.metadata.version("mcp") if is_there else "0"
    if int(found.split(".")[0]) < SDK:
        raise UsageError(
            f"jaxcluster mcp needs version {SDK} of the Model Context Protocol's SDK, "
            + (f"not {found}." if is_there else "which is not installed."),
            "pip install -U 'jaxcluster[mcp]'",
        )
    from jaxcluster.mcp import server

    server.serve(allow_run)
