"""What the ranks of one cell ask, put to the user one after another, and what he answers.

Ranks that run the same cell ask the same: one answer serves all of them. Questions are the same if
each is its rank's nth in the cell, with the same prompt. A debugger's are its own rank's alone. A
rank that was just answered may ask again at once, as a debugger does, and keeps its turn. Else the
lowest rank that asks is next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from jaxcluster import wire
from jaxcluster.cluster.prompts import Labelled
from jaxcluster.wire.link import Link, Sink
from jaxcluster.wire.ops.cells import Answer

GATHER_S = 0.2  # that other ranks get to ask, too: they run the same cell
AGAIN_S = 0.4  # that a rank gets to ask again before it is another's turn
LOOK_S = 0.02  # between two looks whether there is an answer
WAIT_S = 0.05  # ... whether it is another rank's turn
IN_BACKGROUND = (
    "this cell runs in the background (--async, or on a thread) and can't ask. Run it without "
    "--async, or set the value in an earlier cell"
)
NO_TERMINAL = (
    "jaxcluster run has no terminal here. Read the value from the script's arguments or from a file"
)

Key = tuple[int, str, bool]  # which one of its rank's, its prompt, whether it is secret


class Conversation:
    """The questions of one cell.

    Attributes:
      prompt: where they are put; None where nobody can be asked.
      why_nobody: said to who asks then.
    """

    def __init__(
        self, link: Link, prompt: Labelled | None = None, why_nobody: str = IN_BACKGROUND
    ) -> None:
        self.prompt, self.why_nobody = prompt, why_nobody
        self._link = link
        self._waiting: dict[tuple[int, int], tuple[wire.Question, float]] = {}  # by rank and id
        self._open: wire.Question | None = None
        self._speaker: int | None = None
        self._answered_at = 0.0
        self._counts: Counter[int] = Counter()
        self._keys: dict[tuple[int, int], Key] = {}
        self._answers: dict[Key, Answer] = {}  # also for ranks that ask the same later
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Whether any rank asks."""
        return bool(self._waiting)

    @property
    def look_s(self) -> float | None:
        """How soon ``step`` is due; None while nobody asks."""
        if self._open is not None:
            return LOOK_S
        return WAIT_S if self._waiting else None

    def add(self, question: wire.Question, now: float) -> None:
        """A rank asks."""
        if self.prompt is None:
            self._refuse(question, self.why_nobody)
        elif not self._is_over:
            at = question.rank, question.id
            if not question.debugger:
                self._counts[question.rank] += 1
                key = self._counts[question.rank], question.prompt, question.secret
                if (known := self._answers.get(key)) is not None:
                    self._send(question, known)
                    return
                self._keys[at] = key
            self._waiting[at] = question, now

    def step(self, now: float, running: Collection[int]) -> None:
        """Ask what is to be asked, and pass on what was answered.

        Args:
          running: the ranks that have not ended the cell.

        Raises:
          KeyboardInterrupt: the stop button was pressed in place of an answer.
        """
        if (prompt := self.prompt) is None or not self._waiting:
            return
        try:
            if self._open is None and (question := self._next(now, running)) is not None:
                self._speaker, self._open = question.rank, question
                same = sorted(one.rank for one in self._same(question))
                asking = sorted({rank for rank, _ in self._waiting} - {question.rank, *same})
                prompt.open(question, same, asking)
            if self._open is None or (text := prompt.poll()) is None:
                return
            answer = Answer(0, text)
        except EOFError:
            answer = Answer(0, eof=True)
        except Exception as why:  # CannotAsk, or this process has no terminal
            answer = Answer(0, refused=str(why))
        self._answer(answer, now)

    def _next(self, now: float, running: Collection[int]) -> wire.Question | None:
        """The question to ask now; None: not yet."""
        asking = {rank for rank, _ in self._waiting}
        speaker, is_new = self._speaker, self._speaker not in asking
        if is_new and speaker in running and now < self._answered_at + AGAIN_S:
            return None
        rank = min(asking) if speaker is None or is_new else speaker
        first, since = next(one for one in self._waiting.values() if one[0].rank == rank)
        may_ask = [r for r in running if not first.debugger or (is_new and r < rank)]
        return first if now >= since + GATHER_S or asking.issuperset(may_ask) else None

    def _same(self, question: wire.Question) -> list[wire.Question]:
        """What other ranks ask that is the same."""
        at = question.rank, question.id
        key = self._keys.get(at)
        found = [one for one in self._waiting if one != at and self._keys.get(one) == key]
        return [self._waiting[one][0] for one in found] if key is not None else []

    def _answer(self, answer: Answer, now: float) -> None:
        assert self._open is not None
        question, self._open, self._answered_at = self._open, None, now
        key = self._keys.get((question.rank, question.id))
        if key is not None and answer.refused is None:
            self._answers[key] = answer
        for one in [question, *self._same(question)]:
            del self._waiting[one.rank, one.id]
            if answer.refused is not None:
                self._refuse(one, answer.refused)
            else:
                self._send(one, answer)

    def _refuse(self, question: wire.Question, why: str) -> None:
        what = "a debugger" if question.debugger else "input()"
        why = f"{what} on rank {question.rank}: {why}"
        self._send(question, Answer(question.id, refused=why))

    def _send(self, question: wire.Question, answer: Answer) -> None:
        self._link.request(question.rank, replace(answer, id=question.id), sink=Sink())

    def withdraw(self, rank: int) -> None:
        """A rank asks no longer: it has ended the cell, or died."""
        self._waiting = {at: one for at, one in self._waiting.items() if at[0] != rank}
        if self._open is not None and self._open.rank == rank:
            self._close()

    def end(self) -> None:
        """The cell is over, or interrupted: what is asked now is not answered."""
        self._is_over = True
        self._waiting.clear()
        self._close()

    def _close(self) -> None:
        self._open = None
        if self.prompt is not None:
            self.prompt.close()
