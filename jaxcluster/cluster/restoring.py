"""What was saved comes back on all ranks or on none: each reads it first, then all bind it.

So it is for new processes, for another number of ranks, and for a checkpoint. A rank's side of it
is ``engine.state.restoring``.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from jaxcluster.cluster.world import World
from jaxcluster.errors import RankError
from jaxcluster.wire.link import Event, Sink
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.state import (
    RestoreBind,
    RestoreDrop,
    RestoreLook,
    RestoreLooked,
    Take,
)

R = TypeVar("R")
Check = Callable[[], None]  # raises where what goes on is to end

OTHERS_S = 0.5  # that other ranks' errors are waited for: the lowest rank's is told


class NotBrought(RankError):
    """A rank could not read another host's files from there (the engine's error of that name)."""


class Restoring:
    """What all ranks read and hold, until all of them bind it.

    Args:
      timeout_s: that ranks have for each of the two steps.
      hint: what to type where one does not answer.

    Attributes:
      token: what the ranks hold it under.
      damaged: the ranks that found what they were to read damaged, or gone; and why.
    """

    def __init__(self, world: World, timeout_s: float, hint: str) -> None:
        self.token = uuid.uuid4().hex
        self.damaged: dict[int, str] = {}
        self._world, self._timeout_s, self._hint = world, timeout_s, hint

    def look(self, each: Mapping[int, RestoreLook], check: Check) -> dict[int, RestoreLooked]:
        """Have these ranks read it; what they say that they would bind. Else none keeps any of it.

        Args:
          check: called now and then meanwhile.

        Raises:
          NotBrought: a rank could not read what another host has. It can be brought to it.
          JaxClusterError: what another rank answered instead, or that one did not answer.
        """
        try:
            check()
            looks = self.ask(each, check)
            check()
        except BaseException:
            link = self._world.link
            link.request_each(dict.fromkeys(link.ranks, RestoreDrop(self.token)), sink=Sink())
            raise
        return looks

    def take(self, each: Mapping[int, Take], check: Check) -> dict[int, RestoreLooked]:
        """As ``look``, of files of as many ranks as there are now."""
        looks = {rank: RestoreLook(self.token, take=take) for rank, take in each.items()}
        return self.look(looks, check)

    def bind(
        self, lost: Collection[str], reasons: Mapping[str, str], check: Check
    ) -> tuple[set[str], dict[str, str]]:
        """Have all ranks bind what they have read, but for what is lost on any.

        Args:
          reasons: why names are lost, for who uses one.

        Returns:
          The names that are back on any rank, and the settings that are not: why.

        Raises:
          JaxClusterError: one of them did not.
        """
        bind = RestoreBind(self.token, sorted(lost), dict(reasons))
        back, left = set[str](), dict[str, str]()
        for rank, bound in self.ask(dict.fromkeys(self._world.link.ranks, bind), check).items():
            self._world.hear_unbound(rank, lost)
            self._world.hear_bound(rank, dict.fromkeys(bound.restored, "") | bound.values)
            back.update(bound.restored)
            left |= bound.left
        return back, left

    def ask(self, each: Mapping[int, Operation[R]], check: Check) -> dict[int, R]:
        """What ranks answer that must all do so; once one has failed, others are not waited for.

        Raises:
          JaxClusterError: what one of them answered instead, or that one did not answer.
        """
        answers: dict[int, Event[R]] = {}
        give_up_at = math.inf

        def take(event: Event[R]) -> None:
            nonlocal give_up_at
            answers[event.rank] = event
            if event.op != "reply":
                give_up_at = min(give_up_at, time.monotonic() + OTHERS_S)

        def look() -> None:
            check()
            if time.monotonic() > give_up_at:
                self._judge(answers, list(answers))

        gather = self._world.link.gather
        found = gather(each, each, timeout_s=self._timeout_s, check=look, on_answer=take)
        return self._judge(found, list(each))

    def _judge(self, answers: Mapping[int, Event[R]], ranks: list[int]) -> dict[int, R]:
        for event in answers.values():
            if event.ename == NotBrought.__name__:
                raise NotBrought(event.why, ranks=[event.rank])
        self.damaged = {r: one.why for r, one in answers.items() if one.ename == "Unreadable"}
        return self._world.all_of(answers, ranks, self._timeout_s, self._hint)
