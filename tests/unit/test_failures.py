"""Whatever class an exception or a displayed value has, something fit for JSON is said of it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.rank import tracebacks
from jaxcluster.wire import codec


class NoRepr:
    def __repr__(self) -> str:
        raise SystemExit(3)


class BadList(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise OSError


class BadClass:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Meta(type):
    @property
    def __name__(cls) -> str:
        raise OSError

    __module__ = __name__  # type: ignore[assignment]


class OfMeta(Exception, metaclass=Meta):
    pass


def strict(value: Any) -> Any:
    """What a strict reader of UTF-8 and JSON makes of a message with ``value`` in it."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    data = wire.encode("op", "id", {"value": value})
    return json.loads(data.decode("utf-8"), parse_constant=refuse)["body"]["value"]


def some_value(draw: random.Random, depth: int = 0) -> Any:
    leaves = [
        None, True, 0, -1, 2**63, 10**5000, 1.5, float("nan"), float("-inf"), "text", "é\U0001f600",
        "\ud83d", "\udc00a", b"bytes\xff", bytearray(b"x"), memoryview(b"abc")[::2], NoRepr(),
        BadClass(), object, Mute(), OfMeta(), OfMeta, range(3), complex(1, 2), {1, 2}, lambda: 0,
    ]  # fmt: skip
    if depth > 4 or draw.random() < 0.4:
        return draw.choice(leaves)
    parts = [some_value(draw, depth + 1) for _ in range(draw.randrange(4))]
    kind = draw.randrange(6)
    if kind == 0:
        return parts
    if kind == 1:
        return tuple(parts)
    if kind == 2:
        return BadList(parts)
    keys = [None, 1, 1.5, "k", "\ud800", (1, "t"), b"b", float("nan"), True, object()]
    made = {draw.choice(keys): part for part in parts}
    if kind == 4:
        made["itself"] = made
    return made


@pytest.mark.parametrize("seed", range(3))
def test_any_value_can_be_sent(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(100):
        value = some_value(draw)
        strict(value)
        assert strict(wire.plain(value)) == wire.plain(value)


def test_values_are_told_as_jupyter_tells_them() -> None:
    numpy = pytest.importorskip("numpy")
    value = {1: b"\x89PNG", "s": numpy.float32(1.5), "a": numpy.arange(2)}
    assert strict(value) == {"1": "iVBORw==", "s": 1.5, "a": [0, 1]}
    assert wire.plain([float("nan")]) == ["nan"]
    assert strict({"a": [1, 2.5, None, True, "é\n"]}) == {"a": [1, 2.5, None, True, "é\n"]}


def test_a_value_that_holds_itself_or_one_part_very_often_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "MAX_ITEMS", 20_000)
    loop: list[Any] = []
    loop.append(loop)
    assert strict(loop) == ["<itself>"]
    bomb: list[Any] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    assert len(json.dumps(wire.plain(bomb))) < 1_000_000
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert b"..." in wire.encode("op", "id", deep)


# --------------------------------------------------------------------------- exceptions


def test_long_messages_and_tracebacks_are_cut_in_the_middle() -> None:
    error = ValueError("a" * 10**6 + "end")
    assert tracebacks.is_odd(error)
    info = tracebacks.error_info(error, ["x" * 10**6] * 5)
    assert len(info.evalue) < tracebacks.MESSAGE_CHARS + 100
    assert info.evalue.endswith("end")
    assert max(map(len, info.traceback)) < tracebacks.MESSAGE_CHARS + 100


def test_a_group_is_shown_with_its_parts() -> None:
    group = ExceptionGroup("two", [ValueError("first"), ExceptionGroup("in", [KeyError("2nd")])])
    assert tracebacks.is_odd(group)
    shown = "\n".join(tracebacks.plain_lines(group))
    assert "ValueError: first" in shown
    assert "KeyError: '2nd'" in shown
    odd = ExceptionGroup("odd", [Mute()])
    assert tracebacks.plain_lines(odd)
