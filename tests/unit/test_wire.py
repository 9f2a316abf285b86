"""Messages survive the wire and wake who waits; what is not a message of ours is refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pickle
import pkgutil
import queue
import re
import signal
import types
import typing
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.agreement.messages import Doing, Place, Refusal
from jaxcluster.wire import Inbox, ops
from jaxcluster.wire.ops.arrays import Arrays
from jaxcluster.wire.ops.values import Pulled

MODULES = [
    importlib.import_module(one.name)
    for one in pkgutil.iter_modules(ops.__path__, f"{ops.__name__}.")
]
MESSAGES = [
    value
    for module in MODULES
    for value in vars(module).values()
    if dataclasses.is_dataclass(value) and value.__module__ == module.__name__
]
OURS = {op: one for op, one in sorted(ops.OPERATIONS.items()) if "jaxcluster" in one.__module__}


def example(annotation: Any) -> Any:
    """A value of that type, with something in every list and dict, and no field left out."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return example(next(a for a in arguments if a is not type(None)))
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple and arguments[-1] is not ...:
        return tuple(map(example, arguments))
    if origin in (list, tuple):
        return origin([example(arguments[0])] * 2)
    if origin is dict:
        return {7 if arguments[0] is int else "key": example(arguments[1])}
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        return annotation(
            **{f.name: example(hints[f.name]) for f in dataclasses.fields(annotation)}
        )
    return {str: "é\n\x1b[0m", int: 2**60, float: 0.1, bool: True, Any: ["any", 1, None]}[
        annotation
    ]


def over_the_wire(body: Any) -> Any:
    return wire.decode(wire.encode("op", "id-1", body))["body"]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_message_comes_back_equal(message: type) -> None:
    sent = example(message)
    assert wire.parse(message, over_the_wire(sent), "message") == sent


@pytest.mark.parametrize("operation", OURS.values(), ids=OURS)
def test_every_reply_comes_back_equal(operation: type[ops.Operation[Any]]) -> None:
    if (reply := operation.reply) is not type(None):
        sent = example(reply)
        assert wire.parse(reply, over_the_wire(sent), "reply") == sent


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        (Arrays, {"name": "x"}, "missing required field `path`"),
        (Arrays, {"name": "x", "path": 2}, "Expected `array`, got `int` - at `$.path`"),
        (Arrays, [1], "Expected `object`, got `array`"),
        (Pulled, {"arrays": [{}], "buffers": []}, "field `shape` - at `$.arrays[0]`"),
    ],
)
def test_a_message_with_other_fields_is_refused(kind: Any, body: Any, what: str) -> None:
    with pytest.raises(wire.WrongFields, match=f"the request 'x': .*{re.escape(what)}"):
        wire.parse(kind, body, "request 'x'")


def test_a_newer_peers_fields_are_dropped() -> None:
    body = {"ename": "E", "evalue": "v", "traceback": [], "new_field": {"deep": 1}}
    assert wire.parse(wire.ErrorInfo, body) == wire.ErrorInfo("E", "v", [])


def test_an_older_peers_missing_fields_take_their_defaults() -> None:
    state = wire.parse(wire.RankState, {"rank": 3, "state": "idle"})
    assert state == wire.RankState(3, "idle")


def test_half_a_surrogate_pair_travels_as_its_escape() -> None:
    output = wire.RankOutput(0, 1, "stream", {"name": "stdout", "text": "a \ud83d b"})
    assert over_the_wire(output)["content"]["text"] == "a \\ud83d b"
    whole = wire.RankOutput(0, 1, "stream", {"name": "stdout", "text": "\U0001f600 é"})
    assert wire.parse(wire.RankOutput, over_the_wire(whole)) == whole
    closed = wire.Closed(1, refused_at("x = 'a \ud83d b'"))
    assert wire.parse(wire.Closed, over_the_wire(closed)).refusal == refused_at("x = 'a \\ud83d b'")


def refused_at(text: str) -> Refusal:
    return Refusal("ended", (1,), (Doing((0,), "waits", place=Place(3, 1, text)),))


def test_another_protocol_version_says_what_to_install() -> None:
    data = json.dumps({"v": 99, "op": "cell", "id": "1"}).encode()
    with pytest.raises(ValueError, match=r"protocol 99, not \d+: install the same jaxcluster"):
        wire.decode(data)


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"v": 4}', b"\xff\xfe"])
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        wire.decode(data)


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a message was unpickled",))


def test_nothing_that_arrives_is_unpickled() -> None:
    with pytest.raises(ValueError):
        wire.decode(pickle.dumps(Bomb()))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("timeout", [0.0, 1e-7, 1e-6, 3e-6, 1e-4])
def test_a_wait_ends_however_short_it_is(timeout: float) -> None:
    for _ in range(2000):
        inbox: Inbox[int] = Inbox()
        inbox.put(1)
        inbox.get()
        for _ in range(2):
            with pytest.raises(queue.Empty):
                inbox.get(timeout=timeout)


def test_a_signal_handler_may_put() -> None:
    """Also where it has interrupted a wait, on the same thread."""
    inbox: Inbox[int] = Inbox()
    before = signal.signal(signal.SIGALRM, lambda *_: inbox.put(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.001)
        assert [inbox.get(timeout=10) for _ in range(200)] == [1] * 200
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
