"""One expression's values on all ranks: which are equal, and what is shown of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jaxcluster import wire
from jaxcluster.engine.compared import MOST_CHARS, looked_at
from jaxcluster.errors import UsageError
from jaxcluster.model.compared import check_expression, compare
from jaxcluster.views import compared as view


def look(text: str, digest: str = "", kind: str = "float", **more: object) -> wire.ValueLook:
    return replace(wire.ValueLook(kind, text, digest), **more)  # type: ignore[arg-type]


HALF, ONE = look("0.5", "=0.5"), look("1.0", "=1.0")


def test_equal_values_are_said_once() -> None:
    found = compare("lr", dict.fromkeys(range(4), HALF))
    assert found.equal
    assert view.text(found) == "lr is equal on ranks 0-3.\n── ranks 0-3 ──\n0.5"


def test_each_value_stands_below_its_ranks() -> None:
    found = compare("lr", {0: HALF, 1: ONE, 2: HALF, 3: HALF})
    assert not found.equal
    assert view.text(found) == (
        "lr: 2 different values on 4 ranks.\n── ranks 0, 2, 3 ──\n0.5\n── rank 1 ──\n1.0"
    )


def test_a_value_without_a_hash_is_compared_by_its_text() -> None:
    objects = {rank: look(f"<object at 0x7f{rank}a>", kind="object") for rank in range(2)}
    found = compare("o", objects)
    assert found.equal
    assert found.headline == "o is equal on ranks 0, 1, judging by its text alone."


def test_equal_texts_of_different_values_are_told() -> None:
    found = compare("x", {0: look("[0, ..., 9]", "#1"), 1: look("[0, ..., 9]", "#2")})
    assert view.text(found).count("The texts are equal, but the values differ.") == 2


def test_types_differ_where_texts_do_not() -> None:
    assert not compare("x", {0: look("1", "=1", "int"), 1: look("1", "=1", "int32")}).equal


def test_what_was_cut_is_counted() -> None:
    told = wire.parse(wire.ValueLook, looked_at("a" * 9_000, "a" * 9_000))
    assert len(told.text) == MOST_CHARS
    assert view.text(compare("x", {0: told})).endswith("a\n... 5,000 more characters.")


def test_copies_that_differ_are_named() -> None:
    part = [[0, 4]]
    looks = {rank: look("Array", "#1", copies=[[0, part, str(rank // 3)]]) for rank in range(4)}
    found = compare("x", looks)
    assert not found.equal
    assert view.text(found).endswith("Rank 3 has other copies of it than ranks 0-2.")
    tree = {
        rank: look("{...}", "#1", copies=[[0, part, "a"], [1, part, str(rank)]]) for rank in (0, 1)
    }
    assert compare("x", tree).odd == ("Rank 1 has other copies of leaf 1 than rank 0.",)


def test_hidden_elements_of_an_array_count() -> None:
    zeros, other = np.zeros(5_000), np.zeros(5_000)
    other[2_500] = 1
    one, two = (
        wire.parse(wire.ValueLook, looked_at(value, repr(value))) for value in (zeros, other)
    )
    assert one.text == two.text
    assert not compare("x", {0: one, 1: two}).equal


def test_a_page_has_the_same_as_text_does() -> None:
    found = compare("a < b", {0: look("'<i>'", "#1"), 1: ONE})
    shown = view.bundle(found)
    assert "<p>a &lt; b: 2 different values on 2 ranks.</p>" in shown["text/html"]
    assert "<pre>&#x27;&lt;i&gt;&#x27;</pre>" in shown["text/html"]
    assert shown[view.MIME]["groups"][1]["ranks"] == (1,)
    assert shown[view.MIME]["equal"] is False


@pytest.mark.parametrize("source", ["", "x = 1", "%time x", "x;", "x y"])
def test_what_is_no_expression_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match=r"%jaxcluster compare params\['w'\]"):
        check_expression(source)
    assert check_expression(" x  # here ") == "x  # here"
