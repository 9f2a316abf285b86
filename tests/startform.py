"""The options that the page's form asks for, as JSON: what the page is built with.

``python tests/startform.py > labextension/src/widgets/options.json``; a test compares it.
"""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from typing import Any

from jaxcluster.options.known import GROUP, OF_ALL, OURS, collect
from jaxcluster.options.table import OPTIONS, PLATFORMS, Field, Option


def text() -> str:
    """The file that the page is built with."""
    # A site's launchers are not in the page: it is built before they are there.
    ours = collect(p for p in entry_points(group=GROUP) if p.dist and p.dist.name == OURS)
    # Each stands where the first launcher that asks for it has it.
    rows = [one for one in OPTIONS if one.field is not None]
    for name, launcher in ours.launchers.items():
        of_it = [ours.by_name[one.name] for one in launcher.options]
        rows += [one for one in of_it if name in _askers(one) and one not in rows]
    rows += [ours.by_name[one.name] for one in OF_ALL if one.field is not None]
    form = {
        "launchers": ["auto", *ours.launchers],
        "platforms": list(PLATFORMS),
        "fields": [_shown(option, option.field) for option in rows if option.field is not None],
    }
    return json.dumps(form, indent=1, ensure_ascii=False) + "\n"


def _askers(option: Option) -> tuple[str, ...]:
    """The launchers with which the form has the option; none where it has no field."""
    return () if option.field is None else option.field.launchers or option.launchers


def _shown(option: Option, field: Field) -> dict[str, Any]:
    first, *rest = option.flag.lstrip("-").split("-")
    help = field.help or option.help[:1].upper() + option.help[1:]
    return {
        "key": first + "".join(part.capitalize() for part in rest),
        "flag": option.shown,
        "kind": option.kind.name,
        "launchers": list(_askers(option)),
        "label": field.label.replace("'", "’"),  # noqa: RUF001
        "help": help.replace("'", "’"),  # noqa: RUF001
        "empty": field.empty or "automatic",
    }


if __name__ == "__main__":
    print(text(), end="")
