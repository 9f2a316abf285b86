"""The options that the page's form asks for, as JSON: what the page is built with.

``python -m jaxcluster.options.form > labextension/src/widgets/options.json``; a test compares it.
"""

from __future__ import annotations

import json
from typing import Any

from jaxcluster.options.table import NAMES, OPTIONS, PLATFORMS, Field, Option


def text() -> str:
    """The file that the page is built with."""
    fields = [_shown(option, option.field) for option in OPTIONS if option.field is not None]
    launchers = [name.partition(":")[0] for name in NAMES if name != "local"]
    form = {"launchers": launchers, "platforms": PLATFORMS, "fields": fields}
    return json.dumps(form, indent=1, ensure_ascii=False) + "\n"


def _shown(option: Option, field: Field) -> dict[str, Any]:
    first, *rest = option.dest.split("_")
    help = field.help or option.help[:1].upper() + option.help[1:]
    return {
        "key": first + "".join(part.capitalize() for part in rest),
        "flag": option.shown,
        "kind": option.kind.name,
        "launchers": field.launchers or option.launchers,
        "label": field.label.replace("'", "’"),  # noqa: RUF001
        "help": help.replace("'", "’"),  # noqa: RUF001
        "empty": field.empty or "automatic",
    }


if __name__ == "__main__":
    print(text(), end="")
