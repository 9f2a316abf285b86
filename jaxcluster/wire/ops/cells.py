"""What a rank is asked about cells: those that run or wait, and what they ask and offer.

A cell itself is a ``CellRequest``.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxcluster.wire.ops import Operation


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


@dataclass(frozen=True)
class Completions:
    """How a cell may go on: [text, kind] each, in place of what is from ``start`` to ``end``."""

    matches: list[list[str]]
    start: int
    end: int


class Complete(Operation[Completions], op="complete"):
    """How a cell may go on at the cursor, from this rank's names."""

    code: str
    cursor: int


@dataclass(frozen=True)
class Inspection:
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
