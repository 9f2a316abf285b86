"""The messages of kernel and page: their examples, which the Lab extension's tests read too."""

from __future__ import annotations

import dataclasses
import json
import runpy
import typing
from pathlib import Path
from typing import Any

import layouts
import msgspec
import pytest

from jaxcluster.cluster import array_queries
from jaxcluster.errors import JaxClusterError
from jaxcluster.model import layout
from jaxcluster.model.rewrite import AutoMode
from jaxcluster.notebook.panel.model import Model
from jaxcluster.notebook.panel.operations import ARGUMENTS, Operations
from jaxcluster.views import arrays
from jaxcluster.views.messages import Answer, Cell, Hello, Request, State

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests/golden/panel.json").read_text())


def test_the_page_has_the_kernels_types() -> None:
    """``python labextension/protocol.py``"""
    made = runpy.run_path(str(ROOT / "labextension/protocol.py"))["Writer"]().text()
    assert (ROOT / "labextension/src/protocol.ts").read_text() == made


def check(example: Any, kind: Any) -> None:
    """It has all that a message of this type has, and nothing else."""
    assert msgspec.to_builtins(msgspec.convert(example, kind)) == example


def test_the_examples_are_messages() -> None:
    for name in ("state", "state_without_cluster", "starting", "failed"):
        check(GOLDEN[name], State)
    check(GOLDEN["cell"], Cell)
    check(GOLDEN["error"], Answer)
    requests, answers = GOLDEN["requests"], GOLDEN["answers"]
    assert [request["op"] for request in requests] == [*ARGUMENTS]
    for request, answer in zip(requests, answers, strict=True):
        assert answer["id"] == msgspec.convert(request, Request).id
        assert request["args"].keys() == {*ARGUMENTS[request["op"]].__struct_fields__}
        msgspec.convert(request["args"], ARGUMENTS[request["op"]])
        check(answer, Answer)
        handler = getattr(Operations, request["op"])
        check(answer["result"], typing.get_type_hints(handler)["return"])


@pytest.mark.parametrize(
    ("op", "args", "why"),
    [
        ("fly", {}, "has no 'fly'."),
        (
            "logs",
            {"rank": 1},
            "'logs' with these arguments: Object missing required field `lines`.",
        ),
        ("auto", {"on": "yes"}, "Expected `bool`, got `str` - at `$.on`."),
        ("ask", {"name": "x", "question": {"op": "fly"}}, "Invalid enum value 'fly'"),
    ],
)
def test_a_request_that_is_not_understood_has_one_error(op: str, args: Any, why: str) -> None:
    model = Model(AutoMode())
    with pytest.raises(JaxClusterError) as caught:
        Operations(model, lambda: Hello(model.take_in()[0], []))(op, args)
    assert why in str(caught.value)
    assert str(caught.value).endswith(
        "Install the same version of jaxcluster for the kernel and for JupyterLab."
    )


def test_a_variable_is_an_array_or_a_tree_and_may_be_on_other_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = layout.tree_layout("params", {0: layouts.tree(4)[0][0]}, {})
    monkeypatch.setattr(array_queries, "variables", lambda world: [told])
    (variable,) = arrays.variables(None)  # type: ignore[arg-type]
    assert (variable.type, variable.shape) == ("dict of 4 arrays", None)
    assert variable.sharding.startswith("P('data', 'model'), P('model',), P(None, ")
    assert variable.nbytes_per_device == 4 * (128 * 256 + 256 + 512 * 256 + 1)
    (first, _), *_ = told.rows
    other = dataclasses.replace(told.layouts[0], shards=())  # other ranks hold it
    told = dataclasses.replace(told, rows=((first, 0),), layouts=(other,))
    (elsewhere,) = arrays.variables(None)  # type: ignore[arg-type]
    assert elsewhere.nbytes_per_device == 4 * 128 * 256


def test_no_message_has_a_state_of_its_own_that_nbclient_would_take_for_a_widgets() -> None:
    """nbclient keeps ``data["state"]`` of any comm message as a widget's."""
    assert not any("state" in kind.__struct_fields__ for kind in (State, Cell, Answer))
