"""The page's types, made of the kernel's: ``labextension/src/protocol.ts``.

``python tests/typescript.py`` writes it: the dataclasses, ``TypedDict``s, literals and unions of
``jaxcluster/panel/protocol.py``, and what these are made of. Docstrings become comments: a section
"Attributes:" those of the fields. A field of type ``Annotated[..., "text"]`` may be missing.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import startform

from jaxcluster.cluster import array_queries, events
from jaxcluster.panel import protocol
from jaxcluster.panel.operations import Operations
from jaxcluster.views import cell_outputs, report, shards

TARGET = Path(__file__).resolve().parents[1] / "labextension" / "src" / "protocol.ts"
WIDTH = 100

CONSTANTS = {
    "PROTOCOL": protocol.PROTOCOL,
    "EVENTS": protocol.EVENTS,
    "EVENTS_ID": protocol.EVENTS_ID,
    "RPC": protocol.RPC,
    "SHARDS_MIME": shards.MIME,
    "OUTPUTS_MIME": cell_outputs.MIME,
    "OUTPUTS_VERSION": cell_outputs.VERSION,
}
ROOTS = (
    *(protocol.State, protocol.Cell, protocol.Hello),
    *(protocol.Request, protocol.Answer, protocol.Heard),
    *(cell_outputs.RanksOutputs, startform.Form),
)
SOURCES = (
    protocol,
    array_queries,
    events,
    cell_outputs,
    report,
)  # of names
ASKED = (protocol.Greetings, Operations)
UNION = (typing.Union, types.UnionType)
PLAIN = {int: "number", float: "number", str: "string", bool: "boolean", Any: "unknown"}
PLAIN |= {type(None): "null", object: "object"}


class Writer:
    """Writes the definition of each type once, before what it is a part of."""

    def __init__(self) -> None:
        self.written: dict[str, str] = {}

    def text(self) -> str:
        """The whole file."""
        for root in ROOTS:
            self.type_of(root)
        operations = self._operations()
        constants = [f"export const {name} = {_literal(v)};" for name, v in CONSTANTS.items()]
        head = "Made by `python tests/typescript.py` of jaxcluster/panel/protocol.py: change that."
        about = _paragraphs(inspect.getdoc(protocol) or "")
        parts = [_comment([head, "", *about], ""), "\n".join(constants)]
        return "\n\n".join([*parts, *self.written.values(), operations, *UNIONS]) + "\n"

    def type_of(self, hint: Any) -> str:
        """What TypeScript calls a type."""
        if hint in PLAIN:
            return PLAIN[hint]
        if not typing.get_args(hint) or hint not in ALIASES:
            return self._spelled(hint)
        name, about = ALIASES[hint]
        if name not in self.written:
            line = f"export type {name} = {self._spelled(hint)};"
            if len(line) > WIDTH:
                line = line.replace(" | ", "\n  | ").replace(" = ", " =\n  | ")
            self.written[name] = f"{_comment([about], '')}\n{line}" if about else line
        return name

    def _spelled(self, hint: Any) -> str:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Annotated, typing.NotRequired):
            return self.type_of(args[0])
        if origin is typing.Literal:
            return " | ".join(map(_literal, args))
        if origin in UNION:
            return " | ".join(map(self.type_of, args))
        if origin is list or (origin is tuple and args[-1] is ...):
            inner = self.type_of(args[0])
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if origin is tuple:
            return f"[{', '.join(map(self.type_of, args))}]"
        if origin is dict:
            return f"{{ [key: string]: {self.type_of(args[1])} }}"
        if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
            return self._interface(hint)
        raise TypeError(f"{hint!r} has no counterpart in TypeScript")

    def _interface(self, kind: type) -> str:
        name = f"I{kind.__name__.removesuffix('Info')}"
        if name in self.written:
            return name
        about, fields = _sections(inspect.cleandoc(vars(kind).get("__doc__") or ""))
        rows = []
        for field, hint in typing.get_type_hints(kind, include_extras=True).items():
            missing = _missing(hint)
            comment = " ".join(filter(None, [fields.pop(field, ""), missing or ""]))
            if comment:
                rows.append(_comment([_capital(comment)], "  "))
            rows.append(f"  {field}{'' if missing is None else '?'}: {self.type_of(hint)};")
        assert not fields, f"{kind.__name__} has no {', '.join(fields)}"
        body = "\n".join([f"export interface {name} {{", *rows, "}"])
        self.written[name] = f"{_comment(about, '')}\n{body}" if any(about) else body
        return name

    def _operations(self) -> str:
        rows = []
        for kind in ASKED:
            for name in protocol.names_of(kind):
                method = getattr(kind, name)
                hints = typing.get_type_hints(method, include_extras=True)
                rows.append(_comment(_paragraphs(inspect.getdoc(method) or ""), "  "))
                _, *parameters = inspect.signature(method).parameters.values()
                args = [
                    f"{p.name}{'' if p.default is p.empty else '?'}: {self.type_of(hints[p.name])}"
                    for p in parameters
                ]
                given = f"{{ {'; '.join(args)} }}" if args else "Record<string, never>"
                rows.append(
                    f"  {name}: {{ args: {given}; result: {self.type_of(hints['return'])} }};"
                )
        about = _comment(["What is asked, with what comes back."], "")
        return "\n".join([about, "export interface IOperations {", *rows, "}"])


UNIONS = (
    "export type Operation = keyof IOperations;",
    "export type Message = IState | ICell | IAnswer;",
)


def _literal(value: object) -> str:
    return "'" + value.replace("'", "\\'") + "'" if isinstance(value, str) else str(value)


def _capital(text: str) -> str:
    first, *rest = re.split(r"(?<=: )", text, maxsplit=1)
    return first[:1].upper() + first[1:] + "".join(rest)


def _missing(hint: Any) -> str | None:
    """Why a field may be missing; "" where that needs no words; None where it is always there."""
    if typing.get_origin(hint) is typing.Annotated:
        return str(typing.get_args(hint)[1])
    return "" if typing.get_origin(hint) is typing.NotRequired else None


def _aliases() -> Iterator[tuple[Any, tuple[str, str]]]:
    """Each literal, union or tuple that has a name: the name, and the string below it."""
    for module in SOURCES:
        body = ast.parse(inspect.getsource(module)).body
        for node, after in itertools.pairwise([*body, ast.Pass()]):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                hint = getattr(module, name)
                if typing.get_origin(hint) in (typing.Literal, *UNION, tuple):
                    comment = after.value if isinstance(after, ast.Expr) else None
                    about = comment.value if isinstance(comment, ast.Constant) else ""
                    yield hint, (name, str(about))


ALIASES = dict(_aliases())


def _paragraphs(text: str) -> list[str]:
    return [" ".join(one.split()) if one else "" for one in re.split(r"\n(?=\n)|(?<=\n)\n", text)]


def _sections(text: str) -> tuple[list[str], dict[str, str]]:
    """A docstring's text, and what its section "Attributes:" has of each field."""
    about, _, attributes = text.partition("\nAttributes:\n")
    fields = {}
    for one in re.split(r"\n(?=\S)", textwrap.dedent(attributes).strip()) if attributes else ():
        name, _, words = one.partition(": ")
        fields[name] = " ".join(words.split())
    return _paragraphs(about.strip()), fields


def _comment(paragraphs: list[str], indent: str) -> str:
    words = [re.sub(r"``(.*?)``", r"`\1`", re.sub(r"\bNone\b", "null", p)) for p in paragraphs]
    words = [re.sub(r'""(?!")', "''", one) for one in words]
    words = [re.sub(r"(?<![^.] )(?<!\S)null", "Null", one) for one in words]
    if len(words) == 1 and len(indent) + len(words[0]) + 7 <= WIDTH:
        return f"{indent}/** {words[0]} */"
    room = WIDTH - len(indent) - 3
    lines = [
        line for one in words for line in textwrap.wrap(one, room, break_on_hyphens=False) or [""]
    ]
    rows = [f"{indent} * {line}".rstrip() for line in lines]
    return "\n".join([f"{indent}/**", *rows, f"{indent} */"])


def rendered() -> str:
    """What the file must be."""
    return Writer().text()


if __name__ == "__main__":
    TARGET.write_text(rendered(), encoding="utf-8")
