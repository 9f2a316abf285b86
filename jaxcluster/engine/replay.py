"""Replay: a rank runs the launches that it has missed.

When one rank skips a program that the others have launched, the others wait in its collectives. The
rank then runs the missing programs itself, in order, with zeros for inputs, and drops the results:
the others come free, with values that are not to be trusted, and all ranks are in lockstep again,
with every variable kept. A program that the rank never compiled comes from another rank as bytes.

Not every program can be run so, and those that can't are refused before anything runs: one that
calls back into Python would hand zeros to the user's functions, and one whose inputs steer how
often its processes meet (``replayable``) would leave them permanently diverged.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxcluster.engine import replayable
from jaxcluster.engine.arrays import numpy_view
from jaxcluster.engine.control import Request
from jaxcluster.engine.counted import Program
from jaxcluster.engine.journal import Journal
from jaxcluster.engine.private import programs
from jaxcluster.host import limits
from jaxcluster.wire.ops import lockstep

TIMEOUT_S = lockstep.Replay.timeout_s
READY_POLL_S = 0.001


class CannotReplay(Exception):
    """A program that can't be exported or run here. Nothing was launched by the failed request."""

    hint = "The ranks must be brought back into lockstep another way: %jaxcluster resync"


class UnknownProgram(CannotReplay):
    """A program that was never compiled here: another rank may have it."""


class MovedOn(Exception):
    """What this rank lacks has changed since. Nothing was launched."""

    hint = CannotReplay.hint


class ReplayStuck(Exception):
    """A program was launched and did not end: not all its processes take part."""

    hint = CannotReplay.hint


def export_program(journal: Journal, fingerprint: int) -> bytes:
    """A program that this rank has launched, as bytes for a rank that has not compiled it.

    Needs no main thread, so it works while that waits in a collective. Some 15 KB each.

    Raises:
      UnknownProgram: it is not known here any more.
      CannotReplay: it can't be serialized, or must not be run with zeros.
    """
    program = journal.program(fingerprint)
    if program is None or program.shipped:
        # What came as bytes is not the same when it is exported once more.
        raise UnknownProgram(f"this rank does not know a program with fingerprint {fingerprint}")
    _refuse_unreplayable(program)
    try:
        return programs.export_program(program.executable)
    except Exception as error:
        raise CannotReplay(
            f"{program.name} can't be serialized: {type(error).__name__}: {error}"
        ) from None


def run_programs(
    journal: Journal,
    fingerprints: Sequence[int],
    shipped: Mapping[int, bytes | memoryview],
    timeout_s: float = TIMEOUT_S,
) -> int:
    """Launch these programs in order with zeros for inputs; returns how many.

    Each counts in the journal as the launch that it stands for. On the main thread. Returns when
    the last one is done; where launches run inline (one CPU device) a missing peer blocks it for
    good, elsewhere for ``timeout_s`` each.

    Args:
      shipped: what ``export_program`` gave, for programs that this rank may not know.

    Raises:
      UnknownProgram: one of them was never compiled here; then none was run.
      CannotReplay: one of them must not be run with zeros; then none was.
      ReplayStuck: one did not end within ``timeout_s``.
    """
    missed = [_find(journal, f, shipped) for f in fingerprints]
    # In strict mode each launch waits for the others to announce it too, and they have done so.
    with journal.unannounced():
        for program in missed:
            _wait(program, programs.launch_with_zeros(program, program.executable), timeout_s)
    return len(missed)


def _find(journal: Journal, fingerprint: int, shipped: Mapping[int, bytes | memoryview]) -> Program:
    program = journal.program(fingerprint)
    if program is None and fingerprint in shipped:
        try:
            executable = programs.load_program(shipped[fingerprint])
            described = programs.describe_program(executable)
        except Exception as error:
            raise CannotReplay(
                f"a program from another rank can't be loaded: {type(error).__name__}: {error}"
            ) from None
        program = replace(described, fingerprint=fingerprint, shipped=True)
    if program is None:
        raise UnknownProgram(f"this rank has no program with fingerprint {fingerprint}")
    _refuse_unreplayable(program)
    return program


def _refuse_unreplayable(program: Program) -> None:
    if program.executable is None:
        raise CannotReplay(f"{program.name} sends an array's contents to another process")
    if programs.calls_python(program.executable):
        raise CannotReplay(f"{program.name} calls Python functions, which would be given zeros")
    if why := replayable.why_not(programs.compiled_text(program.executable)):
        raise CannotReplay(f"{program.name} can't be run with zeros: {why}")


def _wait(program: Program, outputs: Sequence[Any], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    for output in map(numpy_view, outputs):
        while not output.is_ready():
            if time.monotonic() > deadline:
                raise ReplayStuck(f"{program.name} has not ended after {timeout_s:g} s")
            time.sleep(READY_POLL_S)


def on_courses(journal: Journal, request: Request[lockstep.Courses]) -> list[str]:
    """``courses``: of each program the collectives that it makes, in order.

    "" for one that is not known here, or whose collectives its text does not tell.
    """
    courses = []
    for fingerprint in request.body.fingerprints:
        program = journal.program(fingerprint)
        course = ""
        if program is not None and program.executable is not None:
            course = replayable.course(programs.compiled_text(program.executable))
            devices = [device.id for device in program.executable.device_list]
            course = course and f"{devices} {course}"
        courses.append(course)
    return courses


def on_export(journal: Journal, request: Request[lockstep.Export]) -> tuple[None, list[bytes]]:
    """``export``: the program in one buffer."""
    return None, [export_program(journal, request.body.fingerprint)]


@limits.lifted()
def on_replay(journal: Journal, request: Request[lockstep.Replay]) -> lockstep.Replayed:
    """``replay``: run these programs."""
    body = request.body
    if body.counts not in (None, journal.launches()):
        # Another notebook's cell has let this rank run them, or a cell has run: look again.
        raise MovedOn("this rank has launched something since it was checked")
    shipped = dict(zip(body.shipped, request.buffers, strict=True))
    ran = run_programs(journal, body.fingerprints, shipped, body.timeout_s)
    return lockstep.Replayed(ran, journal.launches())
