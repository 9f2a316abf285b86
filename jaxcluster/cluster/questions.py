"""What the ranks of one cell ask, put to the user one after another, and what he answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from jaxcluster import wire
from jaxcluster.cluster.prompts import CannotAsk, Labelled
from jaxcluster.model.questions import Key, Questions
from jaxcluster.wire.link import Link, Sink
from jaxcluster.wire.ops.cells import Answer

LOOK_S = 0.02  # between two looks whether there is an answer
WAIT_S = 0.05  # ... whether it is another rank's turn
IN_BACKGROUND = (
    "this cell runs in the background (--async, or on a thread) and can't ask. Run it without "
    "--async, or set the value in an earlier cell"
)
NO_TERMINAL = (
    "jaxcluster run has no terminal here. Read the value from the script's arguments or from a file"
)


class Conversation:
    """The questions of one cell.

    Attributes:
      prompt: where they are put; None where nobody can be asked.
      why_nobody: said to who asks then.
    """

    def __init__(self, link: Link, why_nobody: str = IN_BACKGROUND) -> None:
        self.prompt: Labelled | None = None
        self.why_nobody = why_nobody
        self._link = link
        self._questions = Questions()
        self._answers: dict[Key, Answer] = {}  # also for ranks that ask the same later
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Whether any rank asks."""
        return bool(self._questions)

    @property
    def look_s(self) -> float | None:
        """How soon ``step`` is due; None while nobody asks."""
        if self._questions.open is not None:
            return LOOK_S
        return WAIT_S if self._questions else None

    def add(self, question: wire.Question, now: float) -> None:
        """A rank asks."""
        if self.prompt is None:
            self._refuse(question, self.why_nobody)
        elif not self._is_over:
            key = self._questions.key(question)
            if key is not None and (known := self._answers.get(key)) is not None:
                self._send(question, known)
            else:
                self._questions.add(question, now)

    def paused(self, rank: int, kind: str) -> None:
        """A rank is held by a person from now on, in ``kind``; "" if it is not any more."""
        if self.prompt is not None:
            self.prompt.paused(rank, kind)

    def hear(self, output: wire.RankOutput) -> None:
        """The output of a rank whose output is not shown otherwise."""
        if self.prompt is not None:
            self.prompt.hear(output)

    def step(self, now: float, running: Collection[int]) -> None:
        """Ask what is to be asked, and pass on what was answered.

        Raises:
          KeyboardInterrupt: the stop button was pressed in place of an answer.
        """
        questions, prompt = self._questions, self.prompt
        if prompt is None or not questions:
            return
        if (question := questions.next(now, running)) is not None:
            try:
                same = [one.rank for one in questions.same]
                others = [r for r in questions.ranks if r not in (question.rank, *same)]
                prompt.open(question, same, others)
            except CannotAsk as why:
                self._give_up(why, now)
                return
        if (question := questions.open) is None:
            return
        try:
            text = prompt.poll()
        except EOFError:
            self._answer(Answer(question.id, eof=True), now)
        except Exception as why:  # this process has no terminal, nor anything in its place
            self._give_up(why, now)
        else:
            if text is not None:
                self._answer(Answer(question.id, text), now)

    def _answer(self, answer: Answer, now: float) -> None:
        for question in self._questions.answered(now):
            if (key := self._questions.key(question)) is not None:
                self._answers[key] = answer
            self._send(question, answer)

    def _give_up(self, why: Exception, now: float) -> None:
        for one in self._questions.answered(now):
            self._refuse(one, str(why))

    def _refuse(self, question: wire.Question, why: str) -> None:
        what = "a debugger" if question.debugger else "input()"
        why = f"{what} on rank {question.rank}: {why}"
        self._send(question, Answer(question.id, refused=why))

    def _send(self, question: wire.Question, answer: Answer) -> None:
        self._link.request(question.rank, replace(answer, id=question.id), sink=Sink())

    def withdraw(self, rank: int) -> None:
        """A rank asks no longer: it has ended the cell, or died."""
        if self._questions.withdraw(rank) and self.prompt is not None:
            self.prompt.close()

    def end(self) -> None:
        """The cell is over, or interrupted: what is asked now is not answered."""
        self._is_over = True
        self._questions.withdraw_all()
        if self.prompt is not None:
            self.prompt.close()
