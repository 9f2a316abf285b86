"""The messages in jaxcluster's code, as one list that a person can read from end to end.

``python tests/messages.py`` writes tests/golden/messages.txt. A message is any string of the code
that reads as text, with ``{}`` where a value goes. Docstrings, keys, patterns, markup and source
code are left out.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden" / "messages.txt"

_PATTERN = re.compile(r"\(\?|\\[dSsw(\[]|\[\^|\.\*|\[[A-Z][a-z]\]")
_EITHER = re.compile(r"\w \||\|\w[^|]* \w|\w \w[^|]*\|")
_CODE = re.compile(
    r"^\s*(import |from [\w.]+ import|def |if not )|\n\s*(import|def) |^\w+: \w+[\w-]*\("
)
_TAG = re.compile(
    r"</?(b|code|details|div|em|g|img|p|path|pre|progress|rect|small|summary|svg|table|tbody|td|text"
    r"|th|thead|tr)( [^<>]*)?/?>"
)
_SWITCHES = ("SIZE|on|off", "on|off", "auto|ask|never")


def _text(node: ast.expr) -> str | None:
    """What a string expression shows, with {} for each value; None if it is not a string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        if left is None and right is None:
            return None
        return ("{}" if left is None else left) + ("{}" if right is None else right)
    return None


def _docstrings(tree: ast.AST) -> set[int]:
    """Docstrings, those of attributes, and a text as ``Annotated`` has it of a field."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            found.append(node.value)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
            found += getattr(node.slice, "elts", ())
    return {id(node) for node in found if isinstance(node, ast.Constant)}


def _strings(node: ast.AST, skip: set[int]) -> Iterator[str]:
    if id(node) in skip:
        return
    if isinstance(node, ast.expr):
        text = _text(node)
        if text is not None:
            yield text
            yield from _inside(node, skip)
            return
    for child in ast.iter_child_nodes(node):
        yield from _strings(child, skip)


def _inside(node: ast.AST, skip: set[int]) -> Iterator[str]:
    """The strings within the holes of an f-string and the other terms of a sum."""
    if isinstance(node, ast.BinOp):
        for term in (node.left, node.right):
            if _text(term) is None:
                yield from _strings(term, skip)
            else:
                yield from _inside(term, skip)
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                yield from _strings(value.value, skip)


def is_message(text: str) -> bool:
    """Whether a string reads as text: words in a row, and no pattern, markup or code."""
    plain = _TAG.sub("", text)
    if len(re.findall(r"[A-Za-z]{2,}", plain)) < 2 or " " not in plain.strip():
        return False
    for switch in _SWITCHES:
        plain = plain.replace(switch, "")
    is_pattern = _PATTERN.search(plain) or ("|" in plain and _EITHER.search(plain))
    return not is_pattern and not _CODE.search(text)


@functools.cache
def messages(package: Path) -> dict[str, list[str]]:
    """The messages of each file of a package, sorted and without repeats."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        texts = {t for t in _strings(tree, _docstrings(tree)) if is_message(t)}
        if texts:
            found[path.relative_to(package).as_posix()] = sorted(texts)
    return found


def rendered() -> str:
    """The whole list, by file."""
    out = []
    for name, texts in messages(ROOT / "jaxcluster").items():
        out.append(f"## {name}\n")
        out += [t.replace("\n", "\\n") + "\n" for t in texts]
        out.append("\n")
    return "".join(out)


if __name__ == "__main__":
    GOLDEN.write_text(rendered())
