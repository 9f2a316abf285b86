"""Messages as JSON bytes and back, whatever a user has put into them."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

PROTOCOL_VERSION = 4

T = TypeVar("T")


def encode(op: str, id: str, body: Any = None) -> bytes:
    """One envelope as JSON bytes; ``body`` is a wire dataclass or a plain JSON value.

    It can't fail for what a user has put in: whatever strict JSON can't carry (NaN and infinities,
    halves of surrogate pairs, bytes, objects) travels as ``plain`` has it.
    """
    return envelope(op, id, encode_body(body))


def encode_body(body: Any) -> bytes:
    """What ``envelope`` takes: the body of one message, or of many."""
    try:
        return _strict.encode(body).encode()
    except Exception:  # TypeError, ValueError, RecursionError, or what a user's class raises
        return _strict.encode(plain(body)).encode()


def envelope(op: str, id: str, body: bytes) -> bytes:
    """One envelope as JSON bytes, around a body that ``encode_body`` has made."""
    head = {"v": PROTOCOL_VERSION, "op": clean(op), "id": clean(id)}
    return b'%s, "body": %s}' % (_strict.encode(head)[:-1].encode(), body)


def _fields(value: Any) -> dict[str, Any]:
    """A dataclass for JSON; ``dataclasses.asdict`` would copy all that is in it, at all depths."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return vars(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_fields)


def plain(value: Any) -> Any:
    """``value`` in JSON's own types, whatever it is. It never fails, and runs a user's code last.

    As Jupyter has it: numbers that JSON lacks are their text (``"nan"``), bytes are base64, sets
    and tuples lists, numpy's scalars and arrays Python's. What else there is, is its ``repr``.
    """
    return _Plain().make(value)


def clean(text: str) -> str:
    """``text`` as UTF-8 can carry it: half a surrogate pair becomes its escape, ``\\ud83d``."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def told(value: Any, limit: int = 1000) -> str:
    """The ``repr`` of anything, truncated to ``limit`` characters; its type where that fails."""
    try:
        return shorten(clean(str.__str__(repr(value))), limit)
    except KeyboardInterrupt:
        raise
    except BaseException:  # its class may do anything
        return f"<{type_name(type(value))} without a repr>"


def type_name(kind: type) -> str:
    """A class's name, past what its metaclass may have in its place."""
    return clean(type.__dict__["__name__"].__get__(kind))


def shorten(text: str, limit: int) -> str:
    """``text``, where it is longer than ``limit`` without its middle."""
    if len(text) <= limit:
        return text
    head, tail = limit * 3 // 4, limit // 4
    return f"{text[:head]} [... {len(text) - head - tail:,} characters ...] {text[-tail:]}"


_OURS = ("jaxcluster.agreement.", "jaxcluster.wire.")  # modules whose dataclasses are messages


class _Plain:
    """One value on its way to JSON: it may hold itself, or one part very often."""

    MAX_DEPTH = 100
    MAX_ITEMS = 1_000_000
    MAX_BITS = 4096  # of an integer: Python refuses to write much longer ones

    def __init__(self) -> None:
        self._items = 0
        self._above: list[int] = []

    def make(self, value: Any) -> Any:
        try:
            return self._make(type(value), value)
        except Exception:  # what the value's own class, or the lack of memory or stack, raised
            return told(value)

    def _make(self, kind: Any, value: Any) -> Any:
        if value is None or kind is bool:
            return value
        if issubclass(kind, str):
            return clean(str.__str__(value))
        if issubclass(kind, int):
            number = int.__int__(value)
            bits = number.bit_length()
            return number if bits <= self.MAX_BITS else f"<an integer of {bits} bits>"
        if issubclass(kind, float):
            real = float.__float__(value)
            return real if math.isfinite(real) else repr(real)
        if issubclass(kind, bytes | bytearray | memoryview):
            return base64.b64encode(value).decode()
        self._items += 1
        if self._items > self.MAX_ITEMS or len(self._above) >= self.MAX_DEPTH:
            return "..."
        if id(value) in self._above:
            return "<itself>"
        self._above.append(id(value))
        try:
            return self._make_container(kind, value)
        finally:
            self._above.pop()

    def _make_container(self, kind: Any, value: Any) -> Any:
        if issubclass(kind, dict):
            return {self._key(k): self.make(v) for k, v in list(dict.items(value))}
        for own in (list, tuple, set, frozenset):
            if issubclass(kind, own):
                return [self.make(item) for item in list(own.__iter__(value))]
        if kind.__module__.startswith(_OURS) and dataclasses.is_dataclass(kind):
            return {k: self.make(v) for k, v in vars(value).items()}
        numpy = sys.modules.get("numpy")
        if (
            numpy is not None
            and issubclass(kind, numpy.generic | numpy.ndarray)
            and value.size <= self.MAX_ITEMS
            and value.dtype.kind in "biufSU"
        ):
            return self.make(value.tolist())
        return told(value)

    def _key(self, key: Any) -> str:
        value = self.make(key)
        return value if isinstance(value, str) else json.dumps(value)


class OtherVersion(ValueError):
    """A message of a jaxcluster that speaks another protocol version."""


def decode(data: bytes | memoryview) -> dict[str, Any]:
    """The envelope of ``encode``.

    Raises:
      OtherVersion: it is of another protocol version.
      ValueError: it is not an envelope.
    """
    try:
        envelope = json.loads(bytes(data))
    except RecursionError:
        raise ValueError("a message that is nested too deep") from None
    if not isinstance(envelope, dict) or "op" not in envelope:
        raise ValueError(f"not a jaxcluster message: {bytes(data)[:80]!r}")
    if envelope.get("v") != PROTOCOL_VERSION:
        raise OtherVersion(
            f"it has jaxcluster protocol {envelope.get('v')}, not {PROTOCOL_VERSION}: "
            "install the same jaxcluster version for the notebook and the ranks"
        )
    return envelope


def parse(cls: type[T], body: Any) -> T:
    """A wire dataclass from the plain JSON value that ``encode`` made of it.

    Unknown keys are dropped (a newer peer may add fields), missing ones take their default.
    """
    return typing.cast(T, None if body is None else _builder(cls, False)(body))


class WrongFields(ValueError):
    """A message that has not the fields of its type."""


def read(kind: Any, body: Any, what: str) -> Any:
    """A value of any of a message's types from what ``encode`` made of it.

    Args:
      what: the message that it is, as in "reply to 'fetch'".

    Raises:
      WrongFields: it lacks a field, has an unknown one, or is of another type.
    """
    try:
        if kind not in _readers:
            _readers[kind] = _value_builder(kind, True)
        reader = _readers[kind]
        return body if reader is None else reader(body)
    except WrongFields as error:
        raise WrongFields(f"the {what}: {error}") from None
    except (AttributeError, LookupError, TypeError, ValueError):
        of = getattr(kind, "__name__", kind)
        raise WrongFields(f"the {what} is {body!r:.80}, and not of {of}") from None


def parse_strictly(cls: type[T], body: Any) -> T:
    """``parse`` of what anybody may have written: every value must be of its field's type.

    Raises:
      ValueError: one is not, or is missing.
    """
    _check(cls, body, cls.__name__)
    try:
        return parse(cls, body)
    except TypeError as error:  # a field without a default is missing
        raise ValueError(str(error)) from None


def _check(annotation: Any, value: Any, where: str) -> None:
    """Raises ValueError if a JSON value is not of this type."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inner:
            return
        annotation = next(a for a in inner if a is not type(None))
        origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (list, tuple) and isinstance(value, list):
        for number, item in enumerate(value):
            _check(inner[0], item, f"{where}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            _check(inner[1], item, f"{where}[{key!r}]")
    elif isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {value!r:.80}, not an object")
        for name, hint in _hints(annotation).items():
            if name in value:
                _check(hint, value[name], f"{where}.{name}")
    elif annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return
    elif annotation is not Any and (
        not isinstance(value, origin or annotation)
        or (isinstance(value, bool) and annotation is not bool)
    ):
        raise ValueError(f"{where} is {value!r:.80}, not {annotation}")


Builder = Callable[[Any], Any]
_builders: dict[tuple[type, bool], Builder] = {}
_readers: dict[Any, Builder | None] = {}


def _builder(cls: type, exact: bool) -> Builder:
    """What makes a dataclass of JSON. Its types are looked at once, and not for each message."""
    if (cls, exact) not in _builders:
        _builders[cls, exact] = _make_builder(cls, exact)
    return _builders[cls, exact]


def _make_builder(cls: type, exact: bool) -> Builder:
    hints = {one.name: _hints(cls)[one.name] for one in dataclasses.fields(cls)}
    made = {name: build for name, hint in hints.items() if (build := _value_builder(hint, exact))}
    names, nested = hints.keys(), tuple(made.items())
    new, update = object.__new__, dict.update

    def build_some(value: dict[str, Any]) -> Any:
        if exact and value.keys() != names:
            lacks = [f"lacks {name!r}" for name in names - value.keys()]
            odd = [f"has {name!r}, which is not known" for name in value.keys() - names]
            raise WrongFields(f"{cls.__name__} {', '.join(sorted(lacks) + sorted(odd))}")
        values = {name: one for name, one in value.items() if name in names}
        for name, build in nested:
            if values.get(name) is not None:
                values[name] = build(values[name])
        return cls(**values)

    def build_all(value: dict[str, Any]) -> Any:
        """As ``__init__`` would, which sets a frozen field after the other."""
        if value.keys() != names:
            return build_some(value)
        found: Any = new(cls)
        update(fields := found.__dict__, value)
        for name, build in nested:
            if fields[name] is not None:
                fields[name] = build(fields[name])
        return found

    return build_some if hasattr(cls, "__post_init__") else build_all


def _value_builder(annotation: Any, exact: bool) -> Builder | None:
    """What makes values of this type of JSON's; None where these are JSON's own, as most are."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        made = next((made for one in inner if (made := _value_builder(one, exact))), None)
        return made and (lambda value: None if value is None else made(value))
    if origin is tuple and inner[1:] == (...,):
        make = _value_builder(inner[0], exact) or _itself
        return lambda value: tuple(map(make, value))
    if origin is list and (item := _value_builder(inner[0], exact)) is not None:
        return lambda value: [item(one) for one in value]
    if origin is dict:
        key = int if inner[0] is int else str
        if (build := _value_builder(inner[1], exact)) is not None:
            return lambda value: {key(name): build(one) for name, one in value.items()}
        if key is int:  # JSON's keys are text
            return lambda value: {int(name): one for name, one in value.items()}
    is_ours = isinstance(annotation, type) and dataclasses.is_dataclass(annotation)
    return _builder(annotation, exact) if is_ours else None


def _itself(value: Any) -> Any:
    return value


_hints_cache: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _hints_cache:
        _hints_cache[cls] = typing.get_type_hints(cls)
    return _hints_cache[cls]
