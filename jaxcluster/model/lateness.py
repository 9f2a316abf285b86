"""Which rank keeps the others waiting, by the referee's own times. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxcluster.agreement.refusals import Place
from jaxcluster.model.waiting import where
from jaxcluster.ranks import begin_ranks
from jaxcluster.wire.ops.agreement import AgreedLaunch

LAUNCHES = 256  # that are looked at
LEAST = 16  # launches of a cell before anybody is named
LEAST_S = 0.005  # behind: less is not worth a word
SHARE = 0.6  # of a cell's launches; chance alone makes one of two ranks last in half of them
OF_TIME = 0.03  # what the others have waited, of the time between the first and the last launch


@dataclass(frozen=True)
class Late:
    """A rank that comes last into most launches of a cell.

    Attributes:
      share: of so many launches.
      behind_s: the median of how much later than the others it comes.
      place, name: the launch at which that is so most often.
    """

    rank: int
    share: float
    behind_s: float
    place: Place
    name: str

    def told(self, hosts: Mapping[int, str] | None = None) -> str:
        """In a sentence."""
        return (
            f"{begin_ranks([self.rank], hosts)} comes last into {self.share:.0%} of launches, "
            f"{1000 * self.behind_s:.0f} ms behind ({where(self.place, self.name)})."
        )


def find(agreed: Sequence[AgreedLaunch]) -> Late | None:
    """Who keeps the others waiting in the last cell; None if nobody does.

    Args:
      agreed: the last launches, oldest first.
    """
    own = [one for one in agreed if one.seq == agreed[-1].seq]
    if len(own) < LEAST:
        return None
    lasts = Counter(one.last for one in own if one.late_s >= LEAST_S)
    if not lasts:
        return None
    ((rank, count),) = lasts.most_common(1)
    delays = [one for one in own if one.last == rank and one.late_s >= LEAST_S]
    lost_s = sum(one.late_s for one in delays)
    if count < SHARE * len(own) or lost_s < OF_TIME * (own[-1].at - own[0].at):
        return None
    (((place, name), _),) = Counter((one.place, one.name) for one in delays).most_common(1)
    behind_s = statistics.median(one.late_s for one in delays)
    return Late(rank, count / len(own), behind_s, place, name)
