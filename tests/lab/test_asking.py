"""Ranks that ask, in a real JupyterLab: a debugger, input() and a post-mortem below the cell."""

from __future__ import annotations

from helpers import plain
from labpage import SETUP, START, LabPage, asked

STOPS = "%%spmd\nif rank == 1:\n    here = 5\n    breakpoint()\nprint(float(jax.jit(jnp.sum)(x)))"


def test_a_rank_is_debugged_below_its_cell_and_the_stop_button_leaves_it(page: LabPage) -> None:
    page.open(
        "debugger.ipynb", START, SETUP, STOPS, "%%spmd\nv = input('v? ')", "%%spmd\n1 / rank",
        "%debug", "%%spmd\nfloat(jax.jit(jnp.sum)(x)), v",
    )  # fmt: skip
    page.do(0, 1)
    page.run(2)
    asked(page, 2, "rank 1> ipdb>", "p here + 1")
    asked(page, 2, "rank 1> ipdb>")
    page.until_state(
        "s.ranks[1].status === 'paused' && s.ranks[0].status !== 'silent'", "rank 1 is paused"
    )
    page.page.locator("[data-status='paused']").first.wait_for()
    assert "── rank 1 asks ──" in page.output(2)
    assert "6" in page.output(2).split()
    asked(page, 2, "rank 1> ipdb>", "c")
    assert page.finish(2).rstrip().endswith("28.0")
    # The stop button leaves it on all ranks.
    page.run(2)
    asked(page, 2, "rank 1> ipdb>")
    page.command("notebook:interrupt-kernel")
    assert "was stopped on ranks 0, 1" in page.finish(2)
    # One answer serves all ranks that ask the same.
    page.run(3)
    asked(page, 3, "ranks 0, 1> v?", "a")
    page.finish(3)
    # A post-mortem of the rank that has failed.
    assert "ZeroDivisionError" in page.do(4)
    page.run(5)
    asked(page, 5, "rank 0> ipdb>", "p rank")
    asked(page, 5, "rank 0> ipdb>", "q")
    assert "----> 2 1 / rank" in plain(page.finish(5))
    assert page.do(6) == "(28.0, 'a')\n"
