"""Clusters for an assistant in the user's editor: ``jaxcluster mcp``, over standard input.

``texts`` has what it is told, ``server`` the tools, by the Model Context Protocol's own SDK.
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
    check_sdk()
    from jaxcluster.mcp import server

    server.serve(allow_run)


def check_sdk() -> None:
    """Raises UsageError where the SDK, an optional dependency, is not there."""
    if importlib.util.find_spec("mcp") is None:
        raise UsageError(
            "jaxcluster mcp needs the Model Context Protocol's SDK, which is not installed.",
            "pip install 'jaxcluster[mcp]'",
        )
    found = importlib.metadata.version("mcp")
    if int(found.split(".")[0]) < SDK:
        raise UsageError(
            f"jaxcluster mcp needs version {SDK} of the Model Context Protocol's SDK, not {found}.",
            "pip install -U 'jaxcluster[mcp]'",
        )
