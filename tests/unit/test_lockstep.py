"""What counts and journals say of who has launched what, and may yet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from journals import launches, report

from jaxcluster import wire
from jaxcluster.model import lockstep

(THREADS,) = launches("0,1", "f")
GATE = [5, 0, 1]


@pytest.mark.parametrize(
    ("seq", "ended", "comes_before"), [(5, 4, True), (5, 5, True), (6, 5, False), (6, 6, False)]
)
def test_a_threads_launch_may_be_of_any_cell_that_a_rank_has_begun(
    seq: int, ended: int, comes_before: bool
) -> None:
    reports = {0: report(0, seq=seq, ended=ended), 1: report(1, seq=4, ended=4, gate=GATE)}
    assert lockstep.comes_before(THREADS, GATE, reports) is comes_before
    assert lockstep.comes_before(replace(THREADS, cell_seq=5), GATE, reports)
    assert not lockstep.comes_before(replace(THREADS, cell_seq=6), GATE, reports)


def test_a_rank_announces_again_what_it_gave_up_where_that_is_its_next_launch_of_the_set() -> None:
    first, second = (replace(one, cell_seq=5) for one in launches("0,1", "fg"))
    other = replace(first, processes="0,1,2")
    waits = replace(report(0), given_up=[first])
    has_made_it = replace(report(1, launches={"0,1": [1, 7]}), given_up=[first])
    goes_on = replace(has_made_it, given_up=[first, second])
    announces = replace(report(3), given_up=[first], announced=other)
    reports = dict(enumerate([waits, has_made_it, goes_on, announces]))

    def told(seq: int) -> list[wire.Launch | None]:
        return [one.announced for one in lockstep.as_interrupted(reports, seq).values()]

    assert told(5) == [first, None, second, other]
    assert told(4) == [None, None, None, other]
