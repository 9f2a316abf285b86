"""The panel's messages, and what it keeps in notebooks, are of the page's types.

``tests/golden/panel.json`` has an example of each message. The Lab extension's tests read it too.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from pathlib import Path

import layouts
import pytest
import startform
from msgspec import to_builtins
from pagetypes import CONSTANTS, NAMED, OPERATIONS, check, misfits

from jaxcluster.cluster import array_queries, events
from jaxcluster.hosts.records import reports
from jaxcluster.model import layout
from jaxcluster.notebook import panel
from jaxcluster.notebook.panel import model, operations
from jaxcluster.views import arrays, cell_outputs, shards

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/panel.json").read_text())


def test_the_examples_are_of_the_pages_types() -> None:
    for name in ("state", "state_without_cluster", "starting", "failed"):
        check(GOLDEN[name], "IState")
    check(GOLDEN["cell"], "ICell")
    check(GOLDEN["error"], "IAnswer")
    requests, answers = GOLDEN["requests"], GOLDEN["answers"]
    assert [request["op"] for request in requests] == [*OPERATIONS]
    assert [answer["id"] for answer in answers] == [request["id"] for request in requests]
    for request, answer in zip(requests, answers, strict=True):
        args, result = OPERATIONS[request["op"]]
        check(request, "IRequest")
        check(answer, "IAnswer")
        check(answer["result"], result)
        assert request["args"].keys() == args.keys()
        for name, kind in args.items():
            check(request["args"][name], kind)


def test_a_value_of_another_type_is_named() -> None:
    odd = {**GOLDEN["cell"], "ended": "soon", "more": 1}
    odd["ranks"] = [{"rank": 0, "status": "lost", "seconds": True}, {"rank": 1, "status": "done"}]
    told = "\n".join(misfits(odd, "ICell"))
    for path in (".ended", ".more", "[0].status", "[0].seconds", "[1].seconds is missing"):
        assert path in told


def test_each_operation_takes_what_the_page_says() -> None:
    assert [*OPERATIONS] == ["hello", *operations.OPERATIONS]
    for name in operations.OPERATIONS:
        _, *taken = inspect.signature(getattr(operations.Operations, name)).parameters
        assert taken == [*OPERATIONS[name][0]], name


def test_names_and_versions_are_alike_on_both_sides() -> None:
    constants = {
        "PROTOCOL": model.PROTOCOL, "EVENTS": panel.EVENTS, "EVENTS_ID": panel.EVENTS_ID,
        "RPC": panel.RPC, "SHARDS_MIME": shards.MIME, "OUTPUTS_MIME": cell_outputs.MIME,
        "OUTPUTS_VERSION": cell_outputs.VERSION,
    }  # fmt: skip
    assert {name: str(value) for name, value in constants.items()} == CONSTANTS
    for kind in (events.StartStep, reports.ReportKind):
        assert " | ".join(map(repr, typing.get_args(kind))) in NAMED.values()


def test_variables_and_what_the_form_has_are_of_the_pages_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(json.loads(startform.text()), "IForm")
    told = layout.tree_layout("params", {0: layouts.tree(4)[0][0]}, {})
    monkeypatch.setattr(array_queries, "variables", lambda world: [told])
    (variable,) = arrays.variables(None)  # type: ignore[arg-type]
    check(to_builtins(variable), "IVariable")
    assert (variable["type"], variable["shape"]) == ("dict of 4 arrays", None)
    assert variable["sharding"].startswith("P('data', 'model'), P('model',), P(None, ")
    assert variable["nbytes_per_device"] == 4 * (128 * 256 + 256 + 512 * 256 + 1)
    (first, _), *_ = told.rows
    other = dataclasses.replace(told.layouts[0], shards=())  # other ranks hold it
    told = dataclasses.replace(told, rows=((first, 0),), layouts=(other,))
    (elsewhere,) = arrays.variables(None)  # type: ignore[arg-type]
    assert elsewhere["nbytes_per_device"] == 4 * 128 * 256


@pytest.mark.parametrize("name", ["state", "cell", "answers"])
def test_no_message_has_a_state_of_its_own_that_nbclient_would_take_for_a_widgets(
    name: str,
) -> None:
    """nbclient keeps ``data["state"]`` of any comm message as a widget's."""
    messages = GOLDEN[name] if isinstance(GOLDEN[name], list) else [GOLDEN[name]]
    assert not any("state" in message for message in messages)
