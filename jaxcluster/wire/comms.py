"""The state of a widget in the messages of its comm: with binary values in it, or beside it.

ipywidgets sends the whole state in the message that opens a comm, and parts of it in every
``update``. Binary values are buffers beside the JSON. So whoever knows the state can open the comm
at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WIDGET = "jupyter.widget"  # ipywidgets' target
VIEW_MIME = "application/vnd.jupyter.widget-view+json"

Path = list[str | int]


def with_buffers(data: dict[str, Any], buffers: Sequence[Any]) -> dict[str, Any]:
    """The state of a message, with its buffers in their places. The message's state is changed."""
    state = data.get("state")
    if not isinstance(state, dict):
        return {}
    for path, buffer in zip(data.get("buffer_paths") or (), buffers, strict=False):
        at: Any = state
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = bytes(buffer)
    return state


def without_buffers(state: Any) -> tuple[Any, list[Path], list[bytes]]:
    """A copy of a state, the places of its buffers (None there), and the buffers."""
    paths: list[Path] = []
    buffers: list[bytes] = []

    def copy(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: copy(item, [*path, key]) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [copy(item, [*path, at]) for at, item in enumerate(value)]
        if isinstance(value, bytes | bytearray | memoryview):
            paths.append(path)
            buffers.append(bytes(value))
            return None
        return value

    return copy(state, []), paths, buffers
