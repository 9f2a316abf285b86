"""A compiled program's text: its computations, what each operation calls, what is refused."""

from __future__ import annotations

import pytest

from jaxcluster.wire import hlo

TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=8

FileNames
1 "2-c637ea876fa9.py"

%body (p: (s32[], f32[4,64])) -> (s32[], f32[4,64]) {
  %p = (s32[], f32[4,64]{1,0}) parameter(0)
  %x = f32[4,64]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%p), index=1
  %s = f32[4,64]{1,0} all-reduce(%x), channel_id=1, replica_groups=[4,2]<=[8], to_apply=%add
  ROOT %t = (s32[], /*index=1*/f32[4,64]{1,0}) tuple(%p, %s)
}

ENTRY %main (x: f32[4,64]) -> (s32[], f32[4,64]) {
  %x.1 = f32[4,64]{1,0} parameter(0)
  ROOT %loop = (s32[], f32[4,64]{1,0}) while(%x.1), condition=%more, body=%body, \
backend_config={"known_trip_count":{"n":"12"}}
}
"""


def test_operations_are_read_with_their_shapes_and_what_they_call() -> None:
    program = hlo.parse(TEXT)
    assert program.entry == "main"
    (_, loop), (_, taken, reduced, _) = (program.computations[name] for name in ("main", "body"))
    assert (loop.opcode, loop.calls) == ("while", ("more", "body"))
    assert (turns := hlo.KNOWN_TURNS.search(loop.attributes)) is not None
    assert turns[1] == "12"
    assert taken.shape == "f32[4,64]{1,0:T(8,128)(2,1)S(1)}"
    assert (reduced.opcode, reduced.calls) == ("all-reduce", ("add",))
    assert reduced.attributes.startswith("), channel_id=1, replica_groups=[4,2]<=[8]")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("module @jit_step {\n}\n", "no entry"),
        (TEXT.rstrip("}\n"), "cut off"),
        (TEXT.replace("%body (", "%main ("), "main twice"),
        (TEXT.replace("%s = f32", "f32"), "not understood: f32"),
    ],
)
def test_another_text_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        hlo.parse(text)
