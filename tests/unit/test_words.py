"""What a refusal says: the cause, then what each rank did, then what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxcluster.agreement.messages import Doing, Place, Refusal
from jaxcluster.model.words import MOST_ROWS, TEXT_CHARS, explain

SOURCE = "rank = jax.process_index()\nif rank != 1:\n    s = float(jnp.sum(x))\n"
SUM = Doing((0,), "waits", "jit(sum)", "float32[8]", Place(4, 3, "s = float(jnp.sum(x))"), 7)
PROD = replace(SUM, name="jit(prod)", place=Place(4, 5, "s = float(jnp.prod(x))"), fingerprint=8)


def waits(*ranks: int, like: Doing = SUM) -> tuple[Doing, ...]:
    return (replace(like, ranks=ranks),)


def test_a_rank_that_ended_the_cell_is_named_with_the_branch_that_it_did_not_take() -> None:
    refusal = Refusal("ended", (1,), (*waits(0, 2, 3), Doing((1,), "ended")))
    assert explain(refusal, {4: SOURCE}) == (
        "Rank 1 ended the cell without the launch that ranks 0, 2, 3 wait for.\n"
        "  ranks 0, 2, 3   line 3   s = float(jnp.sum(x))   jit(sum) float32[8]\n"
        "  rank 1          ended   line 2 is `if rank != 1:`\n"
        "Nothing was launched. Fix the cell and run it again."
    )


def test_a_rank_that_alone_makes_a_launch_is_named() -> None:
    refusal = Refusal("ended", (0,), (*waits(0), Doing((1,), "ended"), Doing((2,), "ended")))
    first, *_ = explain(refusal).splitlines()
    assert first == "Rank 0 makes a launch that the others do not."


def test_different_programs_are_told_side_by_side() -> None:
    refusal = Refusal("differs", (1,), (*waits(0, 2), *waits(1, like=PROD)))
    source = "if rank != 1:\n    pass\ns = float(jnp.sum(x))\n"
    assert explain(refusal, {4: source}) == (
        "Ranks 0-2 were about to launch different programs.\n"
        "  ranks 0, 2   line 3   s = float(jnp.sum(x))   jit(sum) float32[8]\n"
        "  rank 1       line 5   s = float(jnp.prod(x))   jit(prod) float32[8]\n"
        "Nothing was launched. All ranks must make the same calls: run both programs on every "
        "rank, and choose afterwards."
    )


def test_one_program_with_different_values_shows_their_hashes() -> None:
    doing = (*waits(0), *waits(1, like=replace(SUM, given=0xABCDEF012345)))
    told = explain(Refusal("differs", (), doing))
    assert told.startswith(
        "Ranks 0, 1 were about to launch one program with different values for it"
    )
    assert told.endswith("All ranks must make the same calls, with the same values.")
    assert "values #000000" in told and "values #012345" in told


@pytest.mark.parametrize(
    ("refusal", "headline", "fix"),
    [
        (
            Refusal("circle", (0, 1), waits(0, 1)),
            "Ranks 0, 1 wait for each other.",
            "Nothing was launched. Make the calls in one order on all ranks.",
        ),
        (
            Refusal("idle", (0,), (*waits(0), Doing((1,), "idle"))),
            "Rank 0 waits for rank 1, which runs no cell.",
            "or run the other cell first, with --async.",
        ),
        (Refusal("died", (2,), waits(0)), "Rank 2 died.", "Nothing was launched."),
        (
            Refusal("failed", (2,), (*waits(0), Doing((2,), "failed"))),
            "Rank 2 failed, so no rank launches anything more in this cell.",
            "Nothing was launched.",
        ),
        (
            Refusal("left", (2,), (Doing((2,), "left"),)),
            "Rank 2 left the wait for a launch: an exception was raised in it.",
            "Nothing was launched.",
        ),
        (
            Refusal("uneven", (1, 2)),
            "Ranks 1, 2 launched other programs without collectives than the rest.",
            "All ranks must make the same calls. Don't use what the cell has assigned.",
        ),
        (
            Refusal("unequal", (1,)),
            "Rank 1 gave other values than the rest to programs without collectives.",
            "All ranks must make the same calls, with the same values. Don't use what the cell has "
            "assigned.",
        ),
        (
            Refusal("torn"),
            "XLA launched a program on some ranks, and refused it on others.",
            "The ranks need new processes: %jaxcluster restart",
        ),
        (Refusal("stopped"), "The cell was stopped.", "Nothing was launched."),
    ],
    ids=lambda value: value.kind if isinstance(value, Refusal) else "",
)
def test_each_kind_has_its_cause_first_and_what_to_do_last(
    refusal: Refusal, headline: str, fix: str
) -> None:
    first, *_, last = explain(refusal).splitlines()
    assert first == headline
    assert last.endswith(fix)


def test_turns_that_met_others_are_told_in_place_of_that_nothing_was_launched() -> None:
    refusal = Refusal("ended", (1,), (*waits(0), Doing((1,), "ended")), Place(4, 3, "x"), 5)
    told = explain(refusal, {4: SOURCE}).splitlines()
    assert told[-2] == (
        "If a rank skipped an iteration of a loop, the last 5 launches from line 3 on mixed "
        "iterations. Don't use what the cell has assigned since."
    )
    assert told[-1] == "Fix the cell and run it again."
    assert len(told) <= 6
    within = replace(refusal, mixed=Place(within="train.py line 3: x.sum()"), mixed_launches=1)
    assert "the last launch from train.py line 3: x.sum() on mixed" in explain(within)


def test_of_many_different_ranks_some_are_told() -> None:
    doing = [replace(SUM, ranks=(r,), fingerprint=r, name=f"p{r}") for r in range(40)]
    told = explain(Refusal("differs", tuple(range(40)), tuple(doing))).splitlines()
    assert len(told) == MOST_ROWS + 2
    assert told[MOST_ROWS].split("   ") == ["  ranks 3-39", "each something else"]


def test_hosts_are_named_where_there_are_several() -> None:
    refusal = Refusal("ended", (1,), (*waits(0), Doing((1,), "ended")))
    told = explain(refusal, hosts={0: "here", 1: "there"})
    assert told.startswith("Rank 1 (there) ended the cell without the launch that rank 0 (here)")


def test_a_long_line_is_cut_and_a_library_is_named() -> None:
    place = Place(4, 3, "y" * 200, "flax/nnx.py line 9: f()")
    told = explain(Refusal("died", (1,), waits(0, like=replace(SUM, place=place))))
    row = told.splitlines()[1]
    assert f"{'y' * TEXT_CHARS}...   (flax/nnx.py line 9: f())   jit(sum)" in row
    outside = explain(
        Refusal("died", (1,), waits(0, like=replace(SUM, place=Place(within="a.py"))))
    )
    assert outside.splitlines()[1] == "  rank 0   a.py   jit(sum) float32[8]"


def test_of_many_inputs_the_first_are_shown_that_differ() -> None:
    inputs = [f"float32[{size}]" for size in range(1000, 1100)]
    other = [*inputs[:50], "bfloat16[7]", *inputs[51:]]
    doing = waits(0, like=replace(SUM, signature=", ".join(inputs)))
    doing += waits(1, like=replace(SUM, signature=", ".join(other), fingerprint=8))
    _, first, second, _ = explain(Refusal("differs", (), doing)).splitlines()
    assert "jit(sum) ..., float32[1050], float32[1051]," in first
    assert "jit(sum) ..., bfloat16[7], float32[1051]," in second
    assert first.endswith(", ...") and len(first) < 150
    (alike,) = explain(Refusal("died", (1,), doing[:1])).splitlines()[1:2]
    assert "jit(sum) float32[1000], float32[1001]," in alike and len(alike) < 150


@pytest.mark.parametrize("source", ["", "if (:\n", "s = float(jnp.sum(x))\n" * 4])
def test_without_a_branch_or_its_source_none_is_named(source: str) -> None:
    refusal = Refusal("ended", (1,), (*waits(0), Doing((1,), "ended")))
    assert "`" not in explain(refusal, {4: source})
