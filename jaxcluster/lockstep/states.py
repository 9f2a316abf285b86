"""What a cell is now, and which state may follow which."""

from __future__ import annotations

import enum
import itertools


class State(enum.Enum):
    """Where a cell is on its course, as its notebook knows it."""

    RUNNING = "running"  # on some of its ranks
    LEAVING = "leaving"  # interrupted: its ranks are given time to leave it
    ENDED = "ended"  # on all its ranks; those that have not are given up
    RETURNING = "returning"  # its ranks may have diverged, and are being brought back
    SETTLED = "settled"  # its ranks are in lockstep, as far as it is concerned
    LEFT = "left"  # what is wrong is not for it to settle: who has lost ranks, or runs later, does
    DIVERGED = "diverged"  # its ranks are not in lockstep, and no cell may run


_MAY_FOLLOW: dict[State, frozenset[State]] = {
    State.RUNNING: frozenset({State.LEAVING, State.ENDED}),
    State.LEAVING: frozenset({State.ENDED}),
    State.ENDED: frozenset({State.RETURNING, State.SETTLED, State.LEFT, State.DIVERGED}),
    State.RETURNING: frozenset({State.SETTLED, State.LEFT, State.DIVERGED}),
    # By new processes. And stop may be pressed while the rest is being done.
    State.LEFT: frozenset({State.SETTLED, State.DIVERGED}),
    State.DIVERGED: frozenset({State.SETTLED}),
    State.SETTLED: frozenset({State.DIVERGED}),
}
OVER = frozenset({State.SETTLED, State.LEFT, State.DIVERGED})
Story = tuple[tuple[float, State, str], ...]


class Impossible(RuntimeError):
    """A cell was to become what it can't: a fault of ours. The story is told."""


class Course:
    """The state of a cell, and how it came to it.

    Attributes:
      story: all that it has been, oldest first: since when, what, and why.
    """

    def __init__(self, now: float) -> None:
        self.story: Story = ((now, State.RUNNING, "sent"),)

    @property
    def state(self) -> State:
        """What it is now."""
        return self.story[-1][1]

    def become(self, state: State, now: float, why: str) -> None:
        """Take the step to ``state``.

        Raises:
          Impossible: it can't follow; then it was not taken.
        """
        story = (*self.story, (now, state, why))
        check(story)
        self.story = story


def check(story: Story) -> None:
    """See that a story begins as each must, and that each of its steps may follow, and says why.

    Raises:
      Impossible: the story is told.
    """
    wrong = "" if story[0][1] is State.RUNNING else "it was never sent"
    for (before, was, _), (after, now, why) in itertools.pairwise(story):
        if now not in _MAY_FOLLOW[was]:
            wrong = f"{now.value} can't follow {was.value}"
        elif after < before:
            wrong = f"{now.value} came before {was.value}"
        elif not why:
            wrong = f"nothing says why it is {now.value}"
    if wrong:
        first = story[0][0]
        told = "; ".join(f"{at - first:.3f} s: {s.value} ({why})" for at, s, why in story)
        raise Impossible(f"A cell went through states that it can't: {wrong}. All of them: {told}")
