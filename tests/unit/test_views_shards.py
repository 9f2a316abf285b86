"""What ``%shards`` and its kin show, held against golden files.

Write them again with ``GOLDEN=write pytest tests/unit/test_views_shards.py`` and look at the diff.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layouts
import pytest

from jaxcluster import wire
from jaxcluster.cluster import array_queries
from jaxcluster.errors import NotAddressable, UsageError
from jaxcluster.model import layout
from jaxcluster.options import arguments
from jaxcluster.views import arrays, blocks, shards
from jaxcluster.views.displays import Bundle
from jaxcluster.views.messages import SHARDS_MIME

GOLDEN = Path(__file__).parents[1] / "golden"


def array() -> Bundle:
    return shards.layout_view(
        layouts.array((8, 8), {"data": 4, "model": 2}, ("data", None)), checked_array()
    )


def checked_array() -> layout.CheckResult:
    checks = {
        rank: [
            wire.ShardCheck(
                (),
                rank,
                2048 * rank + copy,
                ((2 * rank, 2 * rank + 2), (0, 8)),
                digest="odd" if (rank, copy) == (2, 1) else "same",
                nan=5 * (rank == 3),
            )
            for copy in range(2)
        ]
        for rank in range(4)
    }
    return layout.compare("x", checks)


def cube() -> Bundle:
    spec = ("a", "b", "c")
    return shards.layout_view(layouts.array((4, 2, 6), {"a": 2, "b": 2, "c": 2}, spec))


def gap() -> Bundle:
    known = layouts.devices(4, 2)
    infos = layouts.named(known, (8, 8), {"i": 4, "j": 2}, ("i", "j"))
    del infos[2]
    found = layout.array_layout("x", infos, known, {2: "dead (killed by SIGKILL)"})
    return shards.layout_view(found)


def tree() -> Bundle:
    return shards.layout_view(layout.tree_layout("params", *layouts.tree(8)))


VIEWS: dict[str, Callable[[], Bundle]] = {
    "shards-array": array,
    "shards-cube": cube,
    "shards-gap": gap,
    "shards-tree": tree,
    "mesh": lambda: shards.tables(arrays.mesh(layouts.mesh())),
    "memory": lambda: shards.tables(
        arrays.memory(layouts.memory(2, {2: "gave no answer within 10 s"}))
    ),
}


def golden(name: str, found: str) -> None:
    path = GOLDEN / name
    if os.environ.get("GOLDEN") == "write":
        path.write_text(found + "\n")
    assert found + "\n" == path.read_text()


@pytest.mark.parametrize("name", VIEWS)
def test_each_form_is_as_it_was(name: str) -> None:
    view = VIEWS[name]()
    golden(f"{name}.txt", view["text/plain"])
    golden(f"{name}.html", view["text/html"])
    golden(f"{name}.json", json.dumps(view[SHARDS_MIME], indent=1))


# -------------------------------------------------------------------------- what sanitizers leave


@pytest.mark.parametrize("name", VIEWS)
def test_html_uses_only_what_sanitizers_leave(name: str) -> None:
    """JupyterLab (untrusted) and GitHub drop styles, scripts, classes and inline SVG."""
    shown = VIEWS[name]()["text/html"]
    tags = set(re.findall(r"<([a-z]+)", shown))
    assert tags <= {*["p", "b", "br", "code", "small", "table", "thead", "tbody", "tr", "th", "td"]}
    assert {*re.findall(r'<[^>]* (\w+)="', shown)} <= {"bgcolor"}


# -------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("shown", "left_out"),
    [
        (
            layouts.array((64, 64), {"a": 64, "b": 8}, ("a", "b"), 64, name="p['<b>']"),
            ["... and 480 more parts"],
        ),
        (layout.tree_layout("p", *layouts.tree(2000)), ["... and 1,940 leaves more"]),
    ],
    ids=["array", "tree"],
)
def test_long_tables_say_how_much_is_left_out(shown: Any, left_out: list[str]) -> None:
    view = shards.layout_view(shown)
    assert [words in view["text/plain"] for words in left_out] == [True] * len(left_out)
    assert len(view["text/plain"].splitlines()) < 90
    assert "<b>'" not in view["text/html"]


def test_who_lacks_a_part_of_what_a_cell_ended_in_is_named_with_the_reason() -> None:
    known = layouts.devices(4, 2)
    infos = layouts.named(known, (8, 8), {"i": 4, "j": 2}, ("i", "j"))
    del infos[2]
    found = layout.array_layout("x", infos, known, {2: "dead (killed by SIGKILL)"})
    with pytest.raises(NotAddressable) as refused:
        arrays.corners(None, found)  # type: ignore[arg-type]
    assert "Rank 2: dead (killed by SIGKILL)." in str(refused.value)
    gone = dict.fromkeys(range(4), wire.ArrayInfo((8, 8), "float32", note="deleted or donated"))
    with pytest.raises(NotAddressable) as refused:
        arrays.corners(None, layout.array_layout("x", gone, known))  # type: ignore[arg-type]
    assert str(refused.value).startswith("The ranks that ran the cell hold no part of this array.")
    assert "Rank 3: deleted or donated." in str(refused.value)


# -------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("x", "x", ()),
        ("params['layers'][0]", "params", ("['layers']", "[0]")),
        ('params["w"].b', "params", ("['w']", ".b")),
        (" état.opt[ 1 ] ", "état", (".opt", "[1]")),
        (r"p['it\'s']", "p", ('["it\'s"]',)),
    ],
)
def test_a_name_and_the_way_to_a_part(text: str, name: str, path: tuple[str, ...]) -> None:
    assert array_queries.split_name(text) == (name, path)


@pytest.mark.parametrize(
    "text", ["x + 1", "f(x)", "x[i]", "1x", "x[0", "x['a'", "__import__('os').x"]
)
def test_expressions_are_not_evaluated(text: str) -> None:
    with pytest.raises(UsageError, match="neither a variable nor a part of one"):
        array_queries.split_name(text)


def test_options_of_the_magic_do_not_touch_the_name() -> None:
    assert arguments.shards_line("params['a b'] --check") == ("params['a b']", {"--check"})
    assert arguments.shards_line("--widget x") == ("x", {"--widget"})
    with pytest.raises(UsageError, match="there is no --wdget"):
        arguments.shards_line("x --wdget")
    with pytest.raises(UsageError, match="NAME is missing"):
        arguments.shards_line("--check")


@pytest.mark.parametrize("limit", [None, 1024])
def test_memory_names_hosts_and_limits_where_there_are_any(limit: int | None) -> None:
    """CPU devices have no limit: there is no column of nothing."""
    known = layouts.devices(2, 1, ranks_per_host=1)
    reports = {r: wire.MemoryReport([r * 2048], {}, [8], [8], [limit]) for r in range(2)}
    shown = arrays.memory(array_queries.Memory(reports, known))
    head, *rows = [line.split() for line in blocks.text(shown).splitlines()[:3]]
    assert head[:3] == ["rank", "host", "device"] and (head[-1] == "free") is (limit is not None)
    assert [row[1:3] for row in rows] == [["0", "host-00"], ["1", "host-01"]]
    assert blocks.html(shown).count("<td>1016 B</td>") == (2 if limit else 0)
