"""Messages as JSON bytes and back, with any objects of users."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from jaxcluster.wire.ops import OPERATIONS, Operation

PROTOCOL_VERSION = 12

Buffer = bytes | memoryview
T = TypeVar("T")


def encode(op: str, id: str, body: Any = None) -> bytes:
    """One envelope as JSON bytes; ``body`` is a message or a plain JSON value.

    It can't fail because of a user's values: ``plain`` replaces what JSON can't carry.
    """
    return envelope(op, id, encode_body(body))


def encode_body(body: Any) -> bytes:
    """The input of ``envelope``: the body of one message, or of many."""
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


def parse(kind: type[T], body: Any, what: str = "") -> T:
    """A value of any of a message's types from the plain JSON value of a message, or of a file.

    Args:
      what: the message that it is, as in "reply to 'fetch'".

    Raises:
      WrongFields: it lacks a field, or one has another type.
    """
    try:
        return msgspec.convert(body, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise WrongFields(f"the {what or kind.__name__}: {error}") from None


def request_in(envelope: Mapping[str, Any]) -> Operation[Any]:
    """The request in an envelope.

    Raises:
      WrongFields: there is no such request, or it lacks something.
    """
    op = envelope["op"]
    if (kind := OPERATIONS.get(op)) is None:
        raise WrongFields(f"the request {op!r}: there is none of this name")
    return parse(kind, envelope.get("body") or {}, f"request {op!r}")


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

    As in Jupyter, numbers that JSON lacks are text (``"nan"``), and bytes are base64. Sets and
    tuples are lists, numpy's scalars and arrays are Python's. Any other object is its ``repr``.
    """
    return _plain(value, (), itertools.count())


MAX_DEPTH = 100  # of what holds itself, or one part very often
MAX_ITEMS = 1_000_000
MAX_BITS = 4096  # of an integer: Python refuses to write much longer ones
_encoder = msgspec.json.Encoder(enc_hook=plain)
_OURS = ("jaxcluster.agreement.", "jaxcluster.wire.")  # modules whose dataclasses are messages


def _plain(value: Any, above: tuple[int, ...], items: Iterator[int]) -> Any:
    """Part of a value, within the parts with the ids ``above``."""
    kind: Any = type(value)

    try:
        if value is None or kind is bool:
            return value
        if issubclass(kind, str):
            return clean(str.__str__(value))
        if issubclass(kind, int):
            number = int.__int__(value)
            bits = number.bit_length()
            return number if bits <= MAX_BITS else f"<an integer of {bits} bits>"
        if issubclass(kind, float):
            real = float.__float__(value)
            return real if math.isfinite(real) else repr(real)
        if issubclass(kind, bytes | bytearray | memoryview):
            return base64.b64encode(value).decode()
        if len(above) >= MAX_DEPTH or next(items) >= MAX_ITEMS:
            return "..."
        if id(value) in above:
            return "<itself>"

        def make(part: Any) -> Any:
            return _plain(part, (*above, id(value)), items)

        def key(part: Any) -> str:
            made = make(part)
            return made if isinstance(made, str) else encode_body(made).decode()

        if issubclass(kind, dict):
            return {key(k): make(v) for k, v in list(dict.items(value))}
        for own in (list, tuple, set, frozenset):
            if issubclass(kind, own):
                return [make(item) for item in list(own.__iter__(value))]
        if kind.__module__.startswith(_OURS) and dataclasses.is_dataclass(kind):
            return {k: make(v) for k, v in vars(value).items()}
        numpy = sys.modules.get("numpy")
        is_numpy = numpy is not None and issubclass(kind, numpy.generic | numpy.ndarray)
        if is_numpy and value.size <= MAX_ITEMS and value.dtype.kind in "biufSU":
            return make(value.tolist())
    except Exception:  # what the value's own class, or the lack of memory or stack, raised
        pass
    return told(value)
