"""Whether a message is of a type of the page's: ``labextension/src/protocol.ts`` has them all."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

TEXT = (Path(__file__).parents[1] / "labextension/src/protocol.ts").read_text()
CONSTANTS = dict(re.findall(r"^export const (\w+) = '?(.*?)'?;", TEXT, re.M))
# The names of texts: 'idle' | 'running'.
NAMED = {
    name: " ".join(meaning.split())
    for name, meaning in re.findall(r"^export type (\w+) =\s+\|? ?('.*?);", TEXT, re.M | re.S)
}
_BODIES = dict(re.findall(r"^export interface (\w+) \{\n(.*?)^\}", TEXT, re.M | re.S))
FIELDS = {name: dict(re.findall(r"^  (\w+\??): (.*);$", _BODIES[name], re.M)) for name in _BODIES}
# Each operation's (arguments with their types, result).
OPERATIONS = {
    name: (dict(re.findall(r"(\w+): ([^;]*?)(?:;| \})", args)), result)
    for name, args, result in re.findall(
        r"^  (\w+): \{ args: (.*); result: (.*) \};$", _BODIES["IOperations"], re.M
    )
}
PLAIN: dict[str, Any] = {
    "number": (int, float), "string": str, "boolean": bool, "null": type(None), "object": dict,
    "unknown": object,
}  # fmt: skip


def misfits(value: Any, kind: str, at: str = "") -> list[str]:
    """What keeps a value from being of a type, as TypeScript spells it; nothing: it is of it."""
    kind = NAMED.get(kind, kind)
    if " | " in kind:
        found = [misfits(value, one, at) for one in kind.split(" | ")]
        return [] if [] in found else [f"{at}: {value!r} is not {kind}", *max(found, key=len)]
    if kind.endswith("[]") and isinstance(value, list):
        each = (misfits(one, kind[:-2], f"{at}[{n}]") for n, one in enumerate(value))
        return list(itertools.chain.from_iterable(each))
    if kind in FIELDS and isinstance(value, dict):
        parts = {name.rstrip("?"): (name[-1] == "?", own) for name, own in FIELDS[kind].items()}
        wrong = [f"{at}.{name} is no part of {kind}" for name in value if name not in parts]
        for name, (may_miss, own) in parts.items():
            if name in value:
                wrong += misfits(value[name], own, f"{at}.{name}")
            elif not may_miss:
                wrong.append(f"{at}.{name} is missing")
        return wrong
    if kind[0] == "'":
        is_right = value == kind.strip("'")
    else:
        wanted = PLAIN.get("object" if kind[0] == "{" else kind, ())
        is_right = isinstance(value, wanted) and (kind, type(value)) != ("number", bool)
    return [] if is_right else [f"{at}: {value!r} is not {kind}"]


def check(value: Any, kind: str) -> None:
    """See that a value is of a type."""
    assert misfits(value, kind, kind) == []
