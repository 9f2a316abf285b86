"""The arguments of the Python API, looked at by its own annotations before anything is done."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxcluster.errors import UsageError

C = TypeVar("C")
Reading = Callable[[Any], Any]  # an argument as it is to be; it raises for one that can't be


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else _refuse()


def _whole(value: Any) -> Any:
    return _refuse() if isinstance(value, bool) else operator.index(value)


def _flag(value: Any) -> Any:
    return bool(value) if value in (True, False) else _refuse()


def _ranks(value: Any) -> Any:
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        _refuse()
    return [_whole(rank) for rank in value]


def _names(value: Any) -> Any:
    return value if isinstance(value, Mapping) else _refuse()


def _path(value: Any) -> Any:
    return value if isinstance(value, str | Path) else _refuse()


def _function(value: Any) -> Any:
    return value if callable(value) else _refuse()


def _refuse() -> Any:
    raise TypeError


# By the annotation, without its ``| None``: what it is called, and how it is read.
_KINDS: dict[str, tuple[str, Reading]] = {
    "str": ("text", _text),
    "int": ("a whole number", _whole),
    "bool": ("True or False", _flag),
    "Sequence[int]": ("a list of ranks like [0, 2]", _ranks),
    "Mapping[str, Any]": ("a dict of names and values", _names),
    "Mapping[str, int]": ("a dict of axes and sizes", _names),
    "str | Path": ("a path", _path),
    "Progress": ("a function", _function),
    "Listener": ("a function", _function),
    "Callable[[str], None]": ("a function", _function),
}


def checked(cls: type[C]) -> type[C]:
    """Have a class's public methods refuse what they are not annotated for.

    They raise UsageError then, with nothing done. Annotations that are not known here are the
    method's own business.
    """
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, _checking(method))
    return cls


def _checking(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)
    kinds = {
        name: (kind, str(each.annotation).endswith("| None"))
        for name, each in signature.parameters.items()
        if (kind := _KINDS.get(str(each.annotation).removesuffix(" | None"))) is not None
    }
    if not kinds:
        return method

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return method(*args, **kwargs)  # which raises it in Python's own words
        given = bound.arguments
        for name in given.keys() & kinds.keys():
            (what, read), may_be_none = kinds[name]
            if may_be_none and given[name] is None:
                continue
            try:
                given[name] = read(given[name])
            except (TypeError, ValueError):
                what += ", or None" if may_be_none else ""
                raise UsageError(
                    f"{name} must be {what}, not {_shown(given[name])}.",
                    f"help(cluster.{method.__name__}) says what it takes.",
                ) from None
        return method(*bound.args, **bound.kwargs)

    return call


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
