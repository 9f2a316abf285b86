"""Writes the page's types from the kernel's: ``python labextension/protocol.py``.

A struct becomes an interface, and a method of ``Operations`` what is asked, with what comes back.
Docstrings and comments become comments. Sources are read as text, so nothing need be installed.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE / "src" / "protocol.ts"
HEAD = "// Generated from jaxcluster/views/messages.py: python labextension/protocol.py"
FOOT = """export type Operation = keyof IOperations;

export type Message = IState | ICell | IAnswer;"""
# Where the page's types are; of the files that name some, the others are the kernel's own.
SOURCES = {
    "cluster/events.py": ("StartStep",),
    "hosts/records/reports.py": ("ReportKind", "Report"),
    "wire/ops/status.py": ("RankResources",),
    "views/messages.py": (),
    "notebook/panel/operations.py": ("Operations",),
}
FROM_PAGE = ("Request", "Question")  # what a page sends may lack what has a default
WIDTH = 100


class Writer:
    """Writes one definition after the other, each of a type that is known by then."""

    def __init__(self) -> None:
        self._names = {"int": "number", "float": "number", "str": "string", "bool": "boolean"}
        self._names |= {"Any": "unknown", "None": "null"}
        self._lines: list[str] = []  # of the file that is read

    def text(self) -> str:
        """The whole of ``protocol.ts``."""
        parts: list[str] = []
        for path, wanted in SOURCES.items():
            source = (HERE.parent / "jaxcluster" / path).read_text(encoding="utf-8")
            self._lines, module = source.splitlines(), ast.parse(source)
            if not wanted:
                parts.insert(0, "\n".join(_comment(_about(module))))
            for node in module.body:
                if not wanted or _name(node) in wanted:
                    parts.append("\n".join(self._define(node)))
        found = "\n\n".join(filter(None, [HEAD, *parts, FOOT])) + "\n"
        return re.sub(r"(?<=;\n)\n(?=export const)", "", found)

    def _define(self, node: ast.stmt) -> list[str]:
        match node:
            case ast.ClassDef(name=name):
                self._names[name] = f"I{name}"
                return [
                    *_comment(_about(node)),
                    f"export interface I{name} {{",
                    *self._body(node),
                    "}",
                ]
            case ast.Assign([ast.Name(name)], ast.Constant() as value):
                return [f"export const {name} = {_literal(value)};"]
            case ast.Assign([ast.Name(name)], ast.Subscript(ast.Name("dict")) as value):
                self._names[name] = self._spell(value)
            case ast.Assign([ast.Name(name)], value):
                self._names[name] = name
                line = f"export type {name} = {self._spell(value)};"
                if len(line) > WIDTH:
                    line = line.replace(" = ", " =\n  | ").replace("' | ", "'\n  | ")
                return [*_comment(self._told(node)), line]
        return []

    def _body(self, node: ast.ClassDef) -> Iterator[str]:
        for key in node.keywords:
            if key.arg == "tag":
                yield f"  type: {_literal(key.value)};"
        for one in node.body:
            if isinstance(one, ast.AnnAssign):
                may_miss = "UnsetType" in ast.unparse(one.annotation)
                may_miss |= node.name in FROM_PAGE and one.value is not None
                yield from _comment(self._told(one), "  ")
                name = f"{ast.unparse(one.target)}{'?' if may_miss else ''}"
                yield f"  {name}: {self._spell(one.annotation)};"
            elif isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
                _, *given = one.args.args
                args = "; ".join(f"{arg.arg}: {self._spell(arg.annotation)}" for arg in given)
                args = f"{{ {args} }}" if args else "Record<string, never>"
                yield from _comment(_about(one), "  ")
                yield f"  {one.name}: {{ args: {args}; result: {self._spell(one.returns)} }};"

    def _told(self, node: ast.stmt) -> str:
        """The comment that follows a definition in its line, or stands right above it."""
        assert node.end_lineno is not None
        if "  # " in (line := self._lines[node.end_lineno - 1]):
            return line.partition("  # ")[2]
        above: list[str] = []
        while (line := self._lines[node.lineno - 2 - len(above)].strip()).startswith("# "):
            above.insert(0, line[2:])
        return " ".join(above)

    def _spell(self, kind: ast.expr | None) -> str:
        """A type as TypeScript has it."""
        match kind:
            case ast.BinOp(left, ast.BitOr(), ast.Name("UnsetType")):
                return self._spell(left)
            case ast.BinOp(left, ast.BitOr(), right):
                return f"{self._spell(left)} | {self._spell(right)}"
            case ast.Subscript(ast.Name("list"), part):
                return f"{self._spell(part)}[]"
            case ast.Subscript(ast.Name("dict"), ast.Tuple([_, part])):
                return f"{{ [key: string]: {self._spell(part)} }}"
            case ast.Subscript(ast.Name("Literal"), ast.Tuple(values)):
                return " | ".join(map(_literal, values))
            case ast.Name(name) | ast.Attribute(attr=name):
                return self._names[name]
            case ast.Constant(None):
                return "null"
        raise TypeError(f"TypeScript has no {kind and ast.unparse(kind)}")


def _name(node: ast.stmt) -> str:
    """What a statement defines."""
    match node:
        case ast.ClassDef(name=name) | ast.Assign([ast.Name(name)]):
            return name
    return ""


def _about(node: ast.ClassDef | ast.FunctionDef | ast.Module) -> str:
    return ast.get_docstring(node) or ""


def _literal(value: ast.expr) -> str:
    return repr(ast.literal_eval(value))


def _comment(text: str, indent: str = "") -> list[str]:
    """The lines of a comment."""
    text = re.sub(r"\bNone\b", "null", text).replace("``", "`").replace('""', "''")
    text = text[:1].upper() + text[1:] + "." * bool(text and text[-1] != ".")
    if not text or (len(line := f"{indent}/** {text} */") <= WIDTH and "\n" not in text):
        return [line] if text else []
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n")]
    room = WIDTH - len(indent) - 3
    wrapped = "\n\n".join(textwrap.fill(one, room, break_on_hyphens=False) for one in paragraphs)
    rows = [f"{indent} * {line}".rstrip() for line in wrapped.splitlines()]
    return [f"{indent}/**", *rows, f"{indent} */"]


if __name__ == "__main__":
    TARGET.write_text(Writer().text(), encoding="utf-8")
