"""Strict mode: no program is issued before all its processes have announced the same one.

Each rank writes what it is about to launch into the coordination service's key-value store and
waits until every process of the program has done so. Announcements that differ raise on every rank,
at the line, with nothing issued, so the ranks stay in lockstep. What the program is given of the
host's values is a part of them: equal programs with different numbers are not issued either. The
wait is a loop in Python: the stop button ends it.

Launches meet by their place in the sequence of their set, whoever makes them, a cell or a thread.
Of a rank's threads one at a time announces a launch of a set.
Where a rank announces that place in a later cell than another, it has skipped a launch of the
earlier one: who is in that raises alone, and comes to the later cell, where it is waited for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import RLock, get_ident
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.counted import Program
from jaxcluster.engine.failures import Divergence
from jaxcluster.engine.first_launches import tell, tell_each
from jaxcluster.engine.journal import Journal
from jaxcluster.engine.private import coordination, launches

POLL_S = 0.0005
SLOW_POLL_S = 0.02  # once a rank is so late that it hardly matters
SLOW_AFTER_S = 0.1
MOST_GIVEN = 4  # values that are told of a launch
REST_S = 0.1  # that the other ranks get to announce theirs once two differ, to be told as well
REFUSED_S = 0.4  # within which a rank has announced that XLA has refused a launch
KEPT = 6  # announcements of a rank for each set: who is slow still looks for an earlier one


@dataclass(frozen=True)
class Announcement:
    """What a rank is about to launch, or was.

    ``number`` counts this rank's. ``passed`` counts those of this place that all had announced
    alike, and that XLA has refused here, ``failed`` those of its cell that differed. ``cell`` is
    the main thread's, 0 of another one, and ``ranks`` those that it was sent to. One that is
    ``over`` was raised about, ``against`` these ranks' numbers. XLA has not launched a ``refused``
    one. ``inputs`` is a hash of the host's values that the program is given.
    """

    rank: int
    number: int
    seq: int
    passed: int
    failed: int
    cell: int
    ranks: tuple[int, ...]
    fingerprint: int
    inputs: str
    told: str
    refused: bool = False
    over: bool = False
    against: tuple[tuple[int, int], ...] = ()

    @classmethod
    @functools.lru_cache(64 * KEPT)  # one that waits reads the same ones again and again
    def read(cls, text: str) -> Announcement:
        fields = json.loads(text)
        fields["ranks"] = tuple(fields["ranks"])
        fields["against"] = tuple((rank, number) for rank, number in fields["against"])
        return cls(**fields)


@dataclass(frozen=True)
class Outlook:
    """What the others' announcements mean for one's own: launch, raise or, if neither, wait.

    ``heard`` is what there is to tell of each rank, ``against`` those that differ, and ``skipping``
    the ranks that have come to a later cell without this launch.
    """

    all_agree: bool
    must_raise: bool
    heard: tuple[Announcement, ...]
    against: tuple[Announcement, ...]
    skipping: tuple[int, ...]


def look(
    own: Announcement,
    said: Sequence[Announcement],
    expected: Sequence[int],
    waited_s: float = 0.0,
) -> Outlook:
    """Pure. ``said`` are the latest announcements of ``expected``, in the order of each rank."""
    against = [one for one in said if one.against and _failed_with(one, own)]
    heard, agreeing, skipping, is_left = [own], 1, [], False
    for rank in expected:
        theirs = [one for one in said if one.rank == rank and rank != own.rank]
        met = _met(own, theirs, waited_s > REFUSED_S)
        here = [one for one in theirs if _place(one) == _place(own)]
        here = [one for one in here if one.failed == own.failed]
        heard += here[-1:]
        if met is None or (_place(met) == _place(own) and met.failed != own.failed):
            continue  # it has not come there yet, or is still to raise
        heard += [met] * (not here)
        if own.cell and met.cell and own.cell != met.cell and own.ranks == met.ranks:
            is_left |= own.cell < met.cell
            skipping += [rank] * (own.cell < met.cell and not here)
        elif (met.fingerprint, met.inputs) == (own.fingerprint, own.inputs):
            agreeing += 1
        else:
            against.append(met)
    return Outlook(
        all_agree=agreeing == len(expected) and not against,
        must_raise=is_left or bool(against),
        heard=tuple(heard),
        against=tuple(against),
        skipping=tuple(skipping),
    )


def _place(one: Announcement) -> tuple[int, ...]:
    return one.seq, one.passed, one.cell


def _failed_with(one: Announcement, own: Announcement) -> bool:
    """Whether this one's failure is that of ``own`` too."""
    if (own.rank, own.number) in one.against:
        return True
    return one.rank != own.rank and (one.failed, *_place(one)) == (own.failed, *_place(own))


def _met(
    own: Announcement, theirs: Sequence[Announcement], would_be_refused: bool
) -> Announcement | None:
    """The announcement of another rank that ``own`` is to be compared with, if there is one.

    Args:
      would_be_refused: what XLA has refused there would be known as such by now.
    """
    place = own.seq, own.passed
    same = [one for one in theirs if (one.seq, one.passed) == place and not one.over]
    if not same and own.passed and (would_be_refused or any(one.seq > own.seq for one in theirs)):
        # It has launched what XLA has refused here.
        here = [one for one in theirs if one.seq == own.seq and not one.over]
        same = [one for one in here[-1:] if not one.refused]
    return same[-1] if same else None


def message(outlook: Outlook, expected: Sequence[int]) -> str:
    """Which ranks were about to launch what: grouped by programs, not by what is said of them."""
    said: dict[int, tuple[object, ...]] = dict.fromkeys(expected, ("nothing yet",))
    for one in outlook.heard:
        left = " (it has ended this cell)" if one.rank in outlook.skipping else ""
        said[one.rank] = one.fingerprint, one.inputs, one.told + left
    alike = len({one.fingerprint for one in outlook.heard}) == 1 and not outlook.skipping
    what = "one program with different values" if alike else "different programs"
    return f"the ranks were about to launch {what}, and launched none: {tell_each(said)}"


@dataclass
class _Turn:
    """A thread's, to launch the next program of a set: until it is counted, or this time."""

    thread: int
    seq: int
    until: float = math.inf


class Strict:
    """Announces one rank's launches.

    Args:
      client: JAX's client of the coordination service.
      epoch: a name that no earlier announcements in the store begin with.
    """

    def __init__(self, journal: Journal, rank: int, client: Any, epoch: str) -> None:
        self.journal = journal
        self.rank = rank
        self.client = client
        self.epoch = epoch
        self._own: dict[str, deque[Announcement]] = {}
        self._order = RLock()  # of this rank's threads
        self._turns: dict[str, _Turn] = {}  # whose launch of a set is the next, or was the last

    def before_launch(self, program: Program) -> None:
        """Return once all have announced this program as their next.

        Raises:
          Divergence: one of them has announced another, or has skipped this one.
        """
        expected = [int(rank) for rank in program.processes.split(",")]
        if self.rank not in expected:
            return  # a stage of a pipeline that others compute: none of it runs here
        self.journal.given_up.pop(program.processes, None)
        restarts = self.journal.restarts
        folder = f"jaxcluster-strict/{self.epoch}/{restarts}/{program.processes}/"
        given = self.journal.host_values.take_announced(program.processes)
        turn = self._take_turn(folder, program)
        own: Announcement | None = None
        upcoming = self.journal.upcoming(program)
        self.journal.waiting.append(upcoming)
        try:
            with self._order:
                own = self._next(folder, program, upcoming, given)
                self._announce(folder, own)
            self._wait(folder, own, expected, restarts)
            turn.until = time.monotonic() + REFUSED_S
        except BaseException:
            # A signal's, say; a divergence is announced already.
            turn.until = 0.0
            with self._order:
                if own is not None and own in self._own[folder]:
                    if own.cell:
                        self.journal.given_up[program.processes] = upcoming
                    with contextlib.suppress(RuntimeError):
                        self._announce(folder, dataclasses.replace(own, over=True))
            raise
        finally:
            self.journal.waiting.remove(upcoming)

    def _take_turn(self, folder: str, program: Program) -> _Turn:
        """Wait until no other thread's launch of the set may come first."""
        own = get_ident()
        while True:
            with self._order:
                seq, _ = self.journal.counts.get(program.processes, (0, 0))
                last = self._turns.get(folder)
                is_over = last is None or seq > last.seq or time.monotonic() >= last.until
                if is_over or (last is not None and last.thread == own):
                    self._turns[folder] = turn = _Turn(own, seq)
                    return turn
            time.sleep(POLL_S)

    def _next(
        self, folder: str, program: Program, upcoming: wire.Launch, given: Sequence[str]
    ) -> Announcement:
        earlier = self._own.setdefault(folder, deque())
        here = [one for one in earlier if one.seq == upcoming.seq]
        cell = max(self.journal.origin(), 0)
        inputs = hashlib.blake2b(repr(given).encode(), digest_size=8).hexdigest() if given else ""
        return Announcement(
            rank=self.rank,
            number=earlier[-1].number + 1 if earlier else 0,
            seq=upcoming.seq,
            passed=sum(not one.over for one in here),
            failed=sum(bool(one.against) for one in here if one.cell == cell),
            cell=cell,
            ranks=self.journal.cell_ranks,
            fingerprint=program.fingerprint,
            inputs=inputs,
            told=tell(upcoming) + (f", given {', '.join(given[:MOST_GIVEN])}" if given else ""),
        )

    def taken_back(self, program: Program) -> None:
        """XLA has refused the launch that this thread has announced last."""
        with self._order:
            for folder, announced in self._own.items():
                made = [one for one in announced if one.fingerprint == program.fingerprint]
                if folder.endswith(f"/{program.processes}/") and made:
                    self._turns[folder].until = 0.0
                    with contextlib.suppress(RuntimeError):
                        self._announce(folder, dataclasses.replace(made[-1], refused=True))

    def _announce(self, folder: str, own: Announcement) -> None:
        """Tell the others, or correct what was told. Another thread may have told more since."""
        with self._order:
            announced = self._own[folder]
            numbers = [one.number for one in announced]
            if own.number in numbers:
                announced[numbers.index(own.number)] = own
            else:
                announced.append(own)
            key, text = f"{folder}{self.rank}.", json.dumps(vars(own))
            self.client.key_value_set(f"{key}{own.number}", text, allow_overwrite=True)
            if len(announced) > KEPT:
                self.client.key_value_delete(f"{key}{announced.popleft().number}")

    def _wait(self, folder: str, own: Announcement, expected: Sequence[int], restarts: int) -> None:
        started = time.monotonic()
        differing_since = 0.0
        while True:
            found = self.client.key_value_dir_get(folder)
            said = sorted((Announcement.read(text) for _, text in found), key=lambda a: a.number)
            now = time.monotonic()
            outlook = look(own, said, expected, now - started)
            if outlook.all_agree:
                return
            if outlook.must_raise:
                differing_since = differing_since or now
                if len(outlook.heard) == len(expected) or now - differing_since > REST_S:
                    against = tuple((one.rank, one.number) for one in outlook.against)
                    self._announce(folder, dataclasses.replace(own, over=True, against=against))
                    raise Divergence(message(outlook, expected), len(outlook.heard))
            if restarts != self.journal.restarts:
                raise Divergence(f"the ranks were brought back into lockstep without {own.told}", 0)
            late = now - started > SLOW_AFTER_S
            time.sleep(SLOW_POLL_S if late else POLL_S)


def switch(journal: Journal, rank: int, epoch: str | None) -> None:
    """Turn strict mode on (with an epoch) or off (None) on this rank.

    Programs that were called before have C++ fast paths that ask nobody, and those called in strict
    mode have none: both are forgotten.
    """
    journal.host_values.announced = None if epoch is None else []
    if epoch is None:
        journal.before_launch = journal.taken_back = None
    else:
        strict = Strict(journal, rank, coordination.coordination_client(), epoch)
        journal.before_launch, journal.taken_back = strict.before_launch, strict.taken_back
    launches.forget_fast_paths()
