"""Cells: how one is run and ends, what it says meanwhile, and what ranks ask and offer."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jaxcluster.agreement.cellqueue import CellSpec, Skipped
from jaxcluster.agreement.refusals import Refusal
from jaxcluster.wire.ops import EVENTS, Message, Operation


class CommMessage(Message):
    """What a page has said on a comm that was opened on a rank; its buffers are the request's.

    ``kind`` is ``comm_msg`` or ``comm_close``. The other ranks know the same comm as ``twin``.
    """

    kind: str
    rank: int
    comm_id: str
    twin: str
    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)


class Script(Message):
    """What ``jaxcluster run`` runs, in place of a cell.

    ``path`` is the file's, absolute; "" for a ``module``, which the rank finds by its name.
    ``folder`` is what stands first on ``sys.path``.
    """

    argv: list[str]
    path: str
    folder: str
    module: str = ""


class RankOutput(Message):
    """One piece of a cell's output.

    ``kind`` is ``stream`` (content: name, text) or the Jupyter message type: ``display_data``,
    ``update_display_data``, ``execute_result``, ``clear_output``, ``comm_open``, ``comm_msg``,
    ``comm_close``.
    """

    rank: int
    seq: int
    kind: str
    content: dict[str, Any]


class Question(Message):
    """What a rank asks the notebook whose cell it runs (``ask``); ``answer`` with its id follows.

    ``secret``: what is typed is not shown. ``debugger``: a debugger asks for its next command.
    """

    rank: int
    seq: int
    id: int
    prompt: str
    secret: bool = False
    debugger: bool = False


class Paused(Message):
    """That a person holds a rank from now on (``RankState.paused``), or with "" no longer."""

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
    """What a rank's code says on a comm, for the page; its buffers are the message's.

    ``kind`` is as in a ``CommMessage``, or ``comm_open``. ``seq`` is the cell that opened the comm,
    ``under`` the one that runs now.
    """

    rank: int
    seq: int
    under: int
    kind: str
    comm_id: str
    twin: str
    data: Any = field(default_factory=dict)
    metadata: Any = field(default_factory=dict)
    target_name: str = ""
    target_module: str | None = None


class Failure(Message):
    """What a rank answers in place of a reply: an exception's name, its message, and what to do."""

    ename: str
    message: str
    hint: str = ""


class Death(Message):
    """Why a rank answers no more, as the notebook's own side knows it.

    ``code`` is what its process has ended with, where that is known: below 0 the signal.
    ``host_lost``: its host is, with all its ranks; ``may_live``: as far as is known. ``log``: of a
    crash the end of its log, with its stack.
    """

    why: str
    code: int | None = None
    host_lost: bool = False
    may_live: bool = False
    log: str = ""


EVENTS.update(
    output=RankOutput,
    ask=Question,
    paused=Paused,
    closed=Closed,
    over=Over,
    push=CommPush,
    error=Failure,
)


class ErrorInfo(Message):
    """An exception of a rank, rendered there: ``traceback`` is IPython's, in the cell's lines.

    ``hint`` is what the rank knows for certain of the reason, and the message does not say.
    """

    ename: str
    evalue: str
    traceback: list[str]
    lineno: int | None = None
    hint: str = ""


class NameChanges(Message):
    """Which names a rank has bound and unbound since it last told this notebook.

    ``is_first``: it has told nothing before, so ``bound`` are all.
    """

    bound: list[str]
    gone: list[str]
    is_first: bool = False


class CellReply(Message):
    """How a cell ended on a rank.

    ``status``: ``ok``, ``error``, ``refused`` (a launch was, and the error says why),
    ``interrupted`` or ``skipped``. ``fault`` is an error of ours after the cell's own code was
    over, in words; "" if there was none.
    """

    rank: int
    seq: int
    status: str
    seconds: float
    error: ErrorInfo | None = None
    names: NameChanges | None = None
    fault: str = ""
    skipped: Skipped | None = None


class CellRequest(Operation[CellReply], op="cell"):
    """A cell to run on a rank.

    ``source`` has the notebook's own line numbers (the ``%%spmd`` line is line 1, a comment).
    ``execution_count`` is the notebook's, so tracebacks and ``Out`` carry the cell's number.
    With a ``message`` it is not run: the message is for a comm that it has opened.
    ``post_mortem``: it has no source; the rank's last error is looked at in the debugger.
    With a ``script`` the source is that script's, plain Python, and is run as one.
    ``profile``: the folder for the files of JAX's profiler, under which it runs; "" for none.
    ``sent_ns``: when it was sent, by its notebook's clock, and ``who`` that is.
    """

    turn: CellSpec
    source: str
    execution_count: int
    shown_ranks: list[int]
    cell_id: str = ""
    message: CommMessage | None = None
    post_mortem: bool = False
    script: Script | None = None
    profile: str = ""
    sent_ns: int = 0
    who: str = ""

    @property
    def seq(self) -> int:
        return self.turn.seq

    @property
    def ranks(self) -> list[int]:
        return list(self.turn.ranks)


class Interrupt(Operation[bool], op="interrupt"):
    """Stop a cell on all of its ranks (None: whatever runs); replies whether it runs here.

    One that still waits for its turn is not run at all. With ``terminate`` it is stopped by
    SIGTERM, if its code handles that.
    """

    seq: int | None
    terminate: bool = False


class Answer(Operation[None], op="answer"):
    """The answer to a ``Question``: a text, the end of input (``eof``), or why nobody can answer.

    A late one is dropped.
    """

    id: int
    text: str = ""
    eof: bool = False
    refused: str | None = None


class Completions(Message):
    """How a cell may go on: [text, kind] each, in place of what is from ``start`` to ``end``."""

    matches: list[list[str]]
    start: int
    end: int


class Complete(Operation[Completions], op="complete"):
    """How a cell may go on at the cursor, from this rank's names."""

    code: str
    cursor: int


class Inspection(Message):
    """What ``name?`` shows, as a MIME bundle; an empty one for an unknown name."""

    found: bool
    name: str
    data: dict[str, str]


class Inspect(Operation[Inspection], op="inspect"):
    """Look at a name; "": at that at the cursor."""

    name: str
    code: str
    cursor: int
    detail: int


class Reveal(Operation[list[str]], op="reveal"):
    """Open these comms with the notebook, and all that they name; replies which are open."""

    ids: list[str]
