"""What an agent is asked, and its fork server: an object of JSON, and an answer with its id."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from jaxcluster.wire.codec import parse, read

R = TypeVar("R")
AGENT, EVENT = b"agent", b"event"  # a request to it or an answer; what it sends unasked
REQUESTS: dict[str, type[Request[Any]]] = {}


@typing.dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Request(Generic[R]):
    """What they can be asked; its subclasses are made frozen dataclasses.

    Attributes:
      cmd: what it is called on its way, and in messages.
      answer: the type of the answer. Bytes of a file come beside it.
    """

    cmd: ClassVar[str]
    answer: ClassVar[Any]

    def __init_subclass__(cls, cmd: str = "") -> None:
        if cmd:
            cls.cmd, (cls.answer,) = cmd, typing.get_args(vars(cls)["__orig_bases__"][0])
            REQUESTS[cmd] = dataclass(frozen=True)(cls)

    def told(self, id: int) -> bytes:
        """As it goes there."""
        return json.dumps({"cmd": self.cmd, "id": id, **vars(self)}, default=vars).encode()

    def read(self, answer: Any) -> R:
        """The answer that has come."""
        found: R = read(self.answer, answer, self.cmd)
        return found


@dataclass(frozen=True)
class Reply:
    """To a request: an ``answer`` or an ``error``; or unasked, why an agent is ``ending``."""

    id: int = 0
    answer: Any = None
    error: str = ""
    ending: str = ""


def parsed(message: Mapping[str, Any]) -> Request[Any]:
    """A request that has come.

    Raises:
      ValueError: there is no such request.
      KeyError, TypeError: it lacks something.
    """
    if (kind := REQUESTS.get(message["cmd"])) is None:
        raise ValueError(f"it does not know the request {message['cmd']!r}")
    return parse(kind, message)
