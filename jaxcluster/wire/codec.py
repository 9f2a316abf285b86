"""Messages as JSON bytes and back, whatever a user has put into them."""

from __future__ import annotations

import base64
import dataclasses
import math
import sys
from typing import Any, TypeVar

import msgspec

PROTOCOL_VERSION = 6

T = TypeVar("T")


def encode(op: str, id: str, body: Any = None) -> bytes:
    """One envelope as JSON bytes; ``body`` is a message or a plain JSON value.

    It can't fail because of a user's values: ``plain`` replaces what JSON can't carry.
    """
    return envelope(op, id, encode_body(body))


def encode_body(body: Any) -> bytes:
    """What ``envelope`` takes: the body of one message, or of many."""
    try:
        return _encoder.encode(body)
    except Exception:  # half a surrogate pair, a huge integer, or what a user's class raises
        return _encoder.encode(plain(body))


def envelope(op: str, id: str, body: bytes) -> bytes:
    """One envelope as JSON bytes, around a body that ``encode_body`` has made."""
    head = _encoder.encode({"v": PROTOCOL_VERSION, "op": clean(op), "id": clean(id)})
    return b'%s,"body":%s}' % (head[:-1], body)


class OtherVersion(ValueError):
    """A message of a jaxcluster that speaks another protocol version."""


class WrongFields(ValueError):
    """A message that has not the fields of its type."""


def decode(data: bytes | memoryview) -> dict[str, Any]:
    """The envelope of ``encode``.

    Raises:
      OtherVersion: it is of another protocol version.
      ValueError: it is not an envelope.
    """
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict) or "op" not in found:
        raise ValueError(f"not a jaxcluster message: {bytes(data)[:80]!r}")
    if found.get("v") != PROTOCOL_VERSION:
        raise OtherVersion(
            f"it has jaxcluster protocol {found.get('v')}, not {PROTOCOL_VERSION}: "
            "install the same jaxcluster version for the notebook and the ranks"
        )
    return found


def read(kind: Any, body: Any, what: str) -> Any:
    """A value of any of a message's types from the plain JSON value that was sent.

    Args:
      what: the message that it is, as in "reply to 'fetch'".

    Raises:
      WrongFields: it lacks a field, or one has another type.
    """
    try:
        return msgspec.convert(body, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise WrongFields(f"the {what}: {error}") from None


def parse(cls: type[T], body: Any) -> T:
    """``read`` of one dataclass, from a message or from a file."""
    found: T = read(cls, body, cls.__name__)
    return found


# --------------------------------------------------------------------------- users' values


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


def plain(value: Any) -> Any:
    """``value`` in JSON's own types, whatever it is. It never fails, and runs a user's code last.

    As Jupyter has it: numbers that JSON lacks are their text (``"nan"``), bytes are base64, sets
    and tuples lists, numpy's scalars and arrays Python's. What else there is, is its ``repr``.
    """
    return _Plain().make(value)


_encoder = msgspec.json.Encoder(enc_hook=plain)
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
        made = self.make(key)
        return made if isinstance(made, str) else encode_body(made).decode()
