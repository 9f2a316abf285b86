"""The inputs of a program in a few words."""

from __future__ import annotations

from jaxcluster.model import signatures

LAYER = ["float32[16,64]", "float32[64@(data, model)]", "key<fry>[]"]
MODEL = ", ".join([*LAYER * 9, "int32[]"])


def test_inputs_are_told_apart_where_shapes_and_shardings_have_commas() -> None:
    assert signatures.inputs_of(", ".join(LAYER)) == LAYER
    assert signatures.inputs_of("") == []


def test_a_few_inputs_are_all_told_and_of_many_the_first() -> None:
    few = ", ".join(LAYER * 2)
    assert signatures.brief(few) == few
    assert signatures.brief(MODEL) == f"{', '.join([*LAYER, LAYER[0]])}, ... (28 inputs)"


def test_of_many_inputs_those_that_differ_are_told() -> None:
    other = MODEL.replace("int32[]", "int32[2]")
    assert signatures.apart({0: MODEL, 1: other}) == {
        0: "input 28 of 28: int32[]",
        1: "input 28 of 28: int32[2]",
    }
    wide = MODEL.replace("16,64", "16,32")
    assert signatures.apart({0: MODEL, 1: wide})[1] == (
        "input 1 of 28: float32[16,32], input 4 of 28: float32[16,32], "
        "input 7 of 28: float32[16,32], ... (9 differ)"
    )
    assert signatures.apart({0: "int32[]", 1: "int32[2]"}) == {0: "int32[]", 1: "int32[2]"}


def test_other_numbers_of_inputs_are_told_as_such() -> None:
    assert signatures.apart({0: MODEL, 1: f"{MODEL}, int32[]"})[1].endswith("... (29 inputs)")
