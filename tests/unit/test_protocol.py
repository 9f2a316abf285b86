"""The page's messages and types are the panel's.

``tests/golden/panel.json`` has an example of each message. The Lab extension's tests read it too.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import startform

from jaxcluster import wire
from jaxcluster.notebook.panel import protocol
from jaxcluster.notebook.panel.operations import OPERATIONS, Operations
from jaxcluster.notebook.panel.protocol import Answer, Cell, Hello, Request, State, plain
from jaxcluster.views import cell_outputs, report, shards

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests/golden/panel.json").read_text())
STATES = ("state", "state_without_cluster", "starting", "failed")


class Asked(Operations):
    """What a page asks."""

    def hello(self, client: str) -> Hello:
        """The panel answers it itself."""
        raise NotImplementedError


ASKED = {name: getattr(Asked, name) for name in ("hello", *OPERATIONS)}


def check(message: Any, kind: Any) -> None:
    """A message has all parts of its type, and no others."""
    assert plain(msgspec.convert(message, kind)) == message


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_of_its_type(name: str) -> None:
    check(GOLDEN[name], State)
    assert GOLDEN[name]["v"] == State(0).v


def test_a_cell_and_an_error_are_of_their_types() -> None:
    check(GOLDEN["cell"], Cell)
    check(GOLDEN["error"], Answer)


def test_each_operation_is_asked_and_answered_by_its_types() -> None:
    requests, answers = GOLDEN["requests"], GOLDEN["answers"]
    assert [request["op"] for request in requests] == [*ASKED]
    assert [answer["id"] for answer in answers] == [request["id"] for request in requests]
    for request, answer in zip(requests, answers, strict=True):
        asked = ASKED[request["op"]]
        check(request, Request)
        check(answer, Answer)
        inspect.signature(asked).bind(None, **request["args"])
        check(answer["result"], typing.get_type_hints(asked)["return"])


def test_no_message_has_a_state_of_its_own_that_nbclient_would_take_for_a_widgets() -> None:
    """nbclient keeps ``data["state"]`` of any comm message as a widget's."""
    messages = [GOLDEN["state"], GOLDEN["cell"], *GOLDEN["answers"]]
    assert not any("state" in message for message in messages)


# --------------------------------------------------------------------------- labextension/src

PLAIN = {int: "number", float: "number", str: "string", bool: "boolean", type(None): "null"}
PLAIN |= {Any: "unknown", object: "object"}
CONSTANTS = {
    **{name: getattr(protocol, name) for name in ("PROTOCOL", "EVENTS", "EVENTS_ID", "RPC")},
    "SHARDS_MIME": shards.MIME,
    "OUTPUTS_MIME": cell_outputs.MIME,
    "OUTPUTS_VERSION": cell_outputs.VERSION,
}


def named(kind: type) -> str:
    return f"I{kind.__name__.removesuffix('Info')}"


TYPES = {
    named(kind): kind
    for module in (wire, shards, cell_outputs, report, startform, protocol)
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)
}


def spelled(hint: Any) -> str:
    """A type as TypeScript spells it, without parentheses."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Annotated, typing.NotRequired):
        return spelled(args[0])
    if origin is typing.Literal:
        return " | ".join(map(repr, args))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(spelled, args))
    if origin is list:
        return f"{spelled(args[0])}[]"
    if origin is dict:
        return f"{{ [key: string]: {spelled(args[1])} }}"
    return PLAIN.get(hint) or named(hint)


def fields(kind: Any) -> dict[str, str]:
    """Each field of a type; ``?`` marks one that may be missing."""
    found = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        may_miss = typing.get_origin(hint) in (typing.Annotated, typing.NotRequired)
        found[f"{name}{'?' * may_miss}"] = spelled(hint)
    return found


def operation(asked: Any) -> tuple[str, str]:
    """The arguments and the result of an operation."""
    hints = typing.get_type_hints(asked)
    result = spelled(hints.pop("return"))
    args = "; ".join(f"{name}: {spelled(hint)}" for name, hint in hints.items())
    return f"{{ {args} }}" if args else "Record<string, never>", result


def test_the_pages_types_are_those_of_python() -> None:
    text = (ROOT / "labextension/src/protocol.ts").read_text()
    for alias, meaning in re.findall(r"^export type (\w+) =\s+\|? ?('.*?);", text, re.M | re.S):
        text = re.sub(rf"\b{alias}\b", " ".join(meaning.split()), text)
    constants = dict(re.findall(r"^export const (\w+) = '?(.*?)'?;", text, re.M))
    assert constants == {name: str(value) for name, value in CONSTANTS.items()}
    bodies = dict(re.findall(r"^export interface (\w+) \{\n(.*?)^\}", text, re.M | re.S))
    asked = re.findall(
        r"^  (\w+): \{ args: (.*); result: (.*) \};$", bodies.pop("IOperations"), re.M
    )
    assert {name: (args, result) for name, args, result in asked} == {
        name: operation(method) for name, method in ASKED.items()
    }
    assert {named(kind) for kind in (State, Cell, Hello, Request, Answer)} <= {*bodies}
    for name, body in bodies.items():
        assert dict(re.findall(r"^  (\w+\??): (.*);$", body, re.M)) == fields(TYPES[name]), name
