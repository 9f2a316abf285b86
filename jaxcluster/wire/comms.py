"""What a comm's messages come to, so that its other end can be opened later, or once more.

A comm joins an object of a kernel to one of the page. ipywidgets speaks on it of a model's state:
the whole of it in the message that opens it, parts of it in every ``update``, with what is binary
beside the JSON as buffers. So a widget's comm can be opened at any time with the state that it has
come to. Of another library's comm nothing is known: its messages are kept, and said again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Buffer = bytes | memoryview

WIDGET = "jupyter.widget"  # ipywidgets' target
VIEW_MIME = "application/vnd.jupyter.widget-view+json"
KEPT_MESSAGES = 256  # of a comm that is not a widget's
REFERENCE = re.compile(r"IPY_MODEL_(.+)\Z", re.DOTALL)


@dataclass
class CommState:
    """A comm as it would be opened now.

    Attributes:
      data: of the opening message; a widget's ``state`` has its buffers in their places.
      later: what has been said on a comm that is not a widget's, as (data, metadata, buffers).
    """

    target_name: str
    target_module: str | None
    data: dict[str, Any]
    metadata: dict[str, Any]
    buffers: Sequence[Buffer] = ()
    later: list[tuple[Any, Any, Sequence[Buffer]]] = field(default_factory=list)

    @classmethod
    def opened(cls, body: dict[str, Any], buffers: Sequence[Buffer]) -> CommState:
        """From a ``comm_open`` as the wire has it. ``body``'s containers become its own."""
        data = body.get("data")
        made = cls(
            body.get("target_name") or "comm",
            body.get("target_module"),
            data if isinstance(data, dict) else {},
            body.get("metadata") or {},
            list(buffers),
        )
        if made.is_widget:
            made.data["state"] = _with_buffers(made.data, buffers)
            made.data.pop("buffer_paths", None)
            made.buffers = ()
        return made

    @property
    def is_widget(self) -> bool:
        return self.target_name == WIDGET and isinstance(self.data.get("state"), dict)

    @property
    def state(self) -> dict[str, Any]:
        """A widget's; what is no widget has none."""
        return self.data["state"] if self.is_widget else {}

    def take(self, data: Any, metadata: Any, buffers: Sequence[Buffer]) -> None:
        """A message that went over it, in either direction."""
        if self.is_widget:
            if isinstance(data, dict) and data.get("method") in ("update", "echo_update"):
                self.state.update(_with_buffers(data, buffers))
            return
        self.later.append((data, metadata, list(buffers)))
        if len(self.later) > KEPT_MESSAGES:
            del self.later[0]

    def opening(self) -> tuple[dict[str, Any], list[Buffer]]:
        """``data`` and buffers of a message that opens it as it is now."""
        if not self.is_widget:
            return self.data, list(self.buffers)
        paths: list[list[str | int]] = []
        buffers: list[Buffer] = []
        state = _without_buffers(self.state, [], paths, buffers)
        return self.data | {"state": state, "buffer_paths": paths}, buffers

    def references(self) -> Iterator[str]:
        """The ids of the models that its state names: children, layout, style."""
        return _references(self.state)


def _with_buffers(data: dict[str, Any], buffers: Sequence[Buffer]) -> dict[str, Any]:
    """The state of a message, with its buffers in their places."""
    state = data.get("state")
    if not isinstance(state, dict):
        return {}
    for path, buffer in zip(data.get("buffer_paths") or (), buffers, strict=False):
        at: Any = state
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = bytes(buffer)
    return state


def _without_buffers(
    value: Any, path: list[str | int], paths: list[list[str | int]], buffers: list[Buffer]
) -> Any:
    """A copy of a state without its buffers: None in a list, missing in an object."""
    if isinstance(value, dict):
        return {
            key: _without_buffers(item, [*path, key], paths, buffers)
            for key, item in value.items()
            if not _is_taken_out(item, [*path, key], paths, buffers)
        }
    if isinstance(value, list):
        return [
            None
            if _is_taken_out(item, [*path, at], paths, buffers)
            else _without_buffers(item, [*path, at], paths, buffers)
            for at, item in enumerate(value)
        ]
    return value


def _is_taken_out(
    item: Any, path: list[str | int], paths: list[list[str | int]], buffers: list[Buffer]
) -> bool:
    if not isinstance(item, bytes | memoryview):
        return False
    paths.append(path)
    buffers.append(item)
    return True


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if (found := REFERENCE.match(value)) is not None:
            yield found[1]
    elif isinstance(value, dict):
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def opening_order(wanted: Iterable[str], known: dict[str, CommState]) -> list[str]:
    """``wanted`` and all that they name, each after what it names: a page opens them so."""
    found: dict[str, None] = {}
    begun: set[str] = set()

    def visit(id: str) -> None:
        if id in begun or id not in known:
            return
        begun.add(id)
        for other in known[id].references():
            visit(other)
        found[id] = None

    for id in wanted:
        visit(id)
    return list(found)
