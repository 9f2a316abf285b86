"""Cells: how one is run and ends, what it says meanwhile, and what ranks ask and offer."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jaxcluster.agreement.messages import CellSpec, Refusal, Skipped
from jaxcluster.wire.ops import EVENTS, Message, Operation

# --------------------------------------------------------------------------- a cell


class CommMessage(Message):
    """A page's message on a comm that a rank has opened; its buffers are the request's."""

    kind: str  # comm_msg or comm_close
    twin: str  # the comm, as all ranks know it
    data: Any
    metadata: dict[str, Any] = field(default_factory=dict)


class ErrorInfo(Message):
    """An exception of a rank, rendered there."""

    ename: str
    evalue: str
    traceback: list[str]  # as IPython has it, in the cell's lines
    lineno: int | None = None


class CellReply(Message):
    """How a cell ended on a rank."""

    rank: int
    seq: int
    status: str  # ok, error, refused (a launch was: the error says why), interrupted or skipped
    seconds: float
    error: ErrorInfo | None = None
    names: list[str] | None = None  # all that the user has bound; None: as in the last reply
    skipped: Skipped | None = None


class CellRequest(Operation[CellReply], op="cell"):
    """A cell to run on a rank."""

    turn: CellSpec
    source: str  # with the notebook's own line numbers: the %%spmd line is a comment
    execution_count: int  # the notebook's, for tracebacks and ``Out``
    shown_ranks: list[int]
    cell_id: str = ""
    message: CommMessage | None = None  # nothing is run: it is for a comm that the cell has opened
    profile: str = ""  # the folder for JAX's profiler, under which it runs; "": none
    sent_ns: int = 0  # by its notebook's clock
    who: str = ""  # the notebook
    parent: dict[str, Any] = field(default_factory=dict)  # Jupyter's message with it: its header

    @property
    def seq(self) -> int:
        return self.turn.seq

    @property
    def ranks(self) -> list[int]:
        return list(self.turn.ranks)


class Noted(Message):
    """A line of what a rank keeps of its cells: one begins, or has ended, or neither: it is new."""

    cell: CellRequest | None = None
    count: int = 0  # of its cells so far
    at: int = 0  # where the cell's output begins
    reply: CellReply | None = None


class Interrupt(Operation[bool], op="interrupt"):
    """Stop a cell on all of its ranks; replies whether it runs here.

    One that still waits for its turn is not run at all.
    """

    seq: int | None  # None: whatever runs


class Death(Message):
    """Why a rank answers no more, as the notebook's own side knows it."""

    why: str
    code: int | None = None  # what its process has ended with, if that is known: below 0 the signal
    may_live: bool = False
    log: str = ""  # after a crash the end of its log, with its stack


# --------------------------------------------------------------------------- what comes meanwhile


class RankOutput(Message):
    """One piece of a cell's output."""

    rank: int
    seq: int
    kind: str  # stream (content: name, text), or the type of the Jupyter message
    content: dict[str, Any]


class Question(Message):
    """A rank's question to the notebook whose cell it runs; an ``Answer`` with its id follows."""

    rank: int
    id: int
    prompt: str
    secret: bool = False  # what is typed is not shown
    debugger: bool = False  # a debugger asks for its next command


class Paused(Message):
    """A person holds a rank from now on (``RankState.paused``), or with "" no longer."""

    kind: str


class Closed(Message):
    """Nothing more is launched in a cell: why. From one of its ranks."""

    seq: int
    refusal: Refusal


class Over(Message):
    """A cell has ended on all of its ranks: why it is not ok, or None. From one of its ranks."""

    seq: int
    refusal: Refusal | None = None


class CommPush(Message):
    """A message of a rank's code to the page, on a comm; its buffers are the message's."""

    rank: int
    kind: str  # as in a CommMessage, or comm_open
    comm_id: str
    twin: str
    parent: dict[str, Any]  # of the cell that runs now
    number: int  # of the cell that opened the comm, and its ranks
    ranks: list[int]
    data: Any = field(default_factory=dict)
    metadata: Any = field(default_factory=dict)
    target_name: str = ""
    target_module: str | None = None


class Failure(Message):
    """A rank's error in place of a reply: an exception's name, its message, and what to do."""

    ename: str
    message: str
    hint: str = ""


EVENTS.update(output=RankOutput, ask=Question, paused=Paused, closed=Closed, over=Over)
EVENTS.update(push=CommPush, error=Failure)

# --------------------------------------------------------------------------- asking and helping


class Answer(Operation[None], op="answer"):
    """The answer to a ``Question``. A late one is dropped."""

    id: int
    text: str = ""
    eof: bool = False  # the end of input
    refused: str | None = None  # why nobody can answer


class Help(Operation[dict[str, Any]], op="help"):
    """The kernel's reply on the code at the cursor, by this rank's names."""

    code: str
    cursor: int
    detail: int | None = None  # what ``name?`` shows; None: how it may go on
