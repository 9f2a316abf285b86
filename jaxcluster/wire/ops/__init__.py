"""The messages between a notebook and the ranks, in a file for each subject.

    class Withdraw(Operation[bool], op="withdraw"):
        seq: int

An operation stands here once. Its rank has a handler for the class (``rank/app.py``), which gets
the request as ``request.body``. A notebook sends an object of it, and gets what ``Operation`` is
given: a message, a list or dict of them, or a value of JSON. ``codec.parse`` makes both of what
has come, and refuses one that lacks a field or has one of another type. Who changes a field of a
message raises ``PROTOCOL_VERSION``. Agents and fork servers are asked in the same way
(``hosts.agent.requests``, ``wire.forks``).
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

R = TypeVar("R")


@typing.dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Message:
    """A message that is sent: its subclasses are made frozen dataclasses."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        dataclass(frozen=True)(cls)


class Operation(Message, Generic[R]):
    """A request to a rank, an agent or a fork server.

    Attributes:
      op: what it is called in an envelope.
      reply: the type of what replies.
    """

    op: ClassVar[str]
    reply: ClassVar[Any]

    def __init_subclass__(cls, *, op: str) -> None:
        super().__init_subclass__()
        (cls.reply,) = typing.get_args(vars(cls)["__orig_bases__"][0])
        cls.op, OPERATIONS[op] = op, cls


OPERATIONS: dict[str, type[Operation[Any]]] = {}
EVENTS: dict[str, type[Any]] = {}  # what a rank sends that is no reply
