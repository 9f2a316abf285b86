"""What an agent is asked, and its fork server: an object of JSON, and an answer with its id."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from jaxcluster.wire.codec import encode_body, parse, read
from jaxcluster.wire.ops import Message

R = TypeVar("R")
AGENT, EVENT = b"agent", b"event"  # a request to it or an answer; what it sends unasked
REQUESTS: dict[str, type[Request[Any]]] = {}


class Request(Message, Generic[R]):
    """What they can be asked.

    Attributes:
      cmd: what it is called on its way, and in messages.
      answer: the type of the answer. Bytes of a file come beside it.
    """

    cmd: ClassVar[str]
    answer: ClassVar[Any]

    def __init_subclass__(cls, *, cmd: str) -> None:
        super().__init_subclass__()
        (cls.answer,) = typing.get_args(vars(cls)["__orig_bases__"][0])
        cls.cmd, REQUESTS[cmd] = cmd, cls

    def told(self, id: int) -> bytes:
        """As it goes there."""
        return encode_body({"cmd": self.cmd, "id": id, **vars(self)})

    def read(self, answer: Any) -> R:
        """The answer that has come."""
        found: R = read(self.answer, answer, f"answer to {self.cmd!r}")
        return found


class Reply(Message):
    """To a request: an ``answer`` or an ``error``; or unasked, why an agent is ``ending``."""

    id: int = 0
    answer: Any = None
    error: str = ""
    ending: str = ""


def parsed(message: Mapping[str, Any]) -> Request[Any]:
    """A request that has come.

    Raises:
      ValueError: there is no such request, or it lacks something.
    """
    if (kind := REQUESTS.get(message["cmd"])) is None:
        raise ValueError(f"it does not know the request {message['cmd']!r}")
    return parse(kind, message)
