"""Debuggers on a rank: ``breakpoint()``, ``pdb``, ``%debug`` and the post-mortem of a cell.

IPython's debugger, with three differences. Where the stop button leaves it the cell is left too, as
the other ranks leave it. It stops in the user's code alone: neither in JAX's frames nor in those
around the cell. And it never takes SIGINT's handler, which is the runner's.
"""

from __future__ import annotations

import bdb
import os
import pdb  # noqa: T100
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from IPython.core import debugger

from jaxcluster.rank import interrupts
from jaxcluster.rank.places import JAX, KERNEL, cell_number, is_folded
from jaxcluster.rank.questions import DEBUGGER

if TYPE_CHECKING:
    from jaxcluster.rank.cells import CellRunner

# Packages in which no step stops. JAX calls numpy and its like all the time.
_PASSED = sys.stdlib_module_names | {"jaxcluster", "numpy", "ml_dtypes", "opt_einsum"}
_PASSED |= {*JAX, *KERNEL}
QUIT = bdb.BdbQuit.__name__  # what leaving the debugger by ``q`` raises in the cell

_runner: CellRunner  # set by ``install``


class RankPdb(debugger.InterruptiblePdb):
    """The debugger of a rank."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "nosigint": True})

    def interaction(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        """Talk to the user, however long that takes."""
        with _runner.asking.held_by(DEBUGGER):
            super().interaction(frame, tb_or_exc)  # type: ignore[no-untyped-call]
        running = _runner.current
        if running is not None and running.interrupted:  # IPython leaves the debugger alone
            sys.settrace(None)
            raise KeyboardInterrupt

    def postcmd(self, stop: bool, line: str) -> bool:
        """Whether to leave after a command: after the stop button, whatever has caught it there."""
        running = _runner.current
        if running is not None and running.interrupted:
            return True
        return super().postcmd(stop, line)

    def get_stack(self, f: Any, t: Any) -> Any:
        """The frames, and where to begin: after an error in the innermost that is not JAX's."""
        stack, at = super().get_stack(f, t)  # type: ignore[no-untyped-call]
        if t is not None:
            files = [frame.f_code.co_filename for frame, _ in stack]
            at = max((i for i, file in enumerate(files) if not is_folded(file)), default=at)
        return stack, at

    def _hidden_predicate(self, frame: FrameType) -> Any:
        if is_folded(frame.f_code.co_filename) and frame is not self.curframe:
            return True
        return super()._hidden_predicate(frame)  # type: ignore[no-untyped-call]

    def stop_here(self, frame: FrameType) -> bool:
        """In a cell and in modules that are no part of Python, JAX or a kernel.

        A step past the end of a statement goes to the cell's next one.
        """
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        is_of_a_file = os.path.isabs(frame.f_code.co_filename)  # else it was made at run time
        if package in _PASSED or not (is_of_a_file or package == "__main__"):
            return False
        return bool(super().stop_here(frame))  # type: ignore[no-untyped-call]

    def user_call(self, frame: FrameType, argument_list: Any) -> None:
        if not _is_statement(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """A statement of a cell is a frame of its own: its end is no place to stop at."""
        if _is_statement(frame):
            self.set_step()
        else:
            super().user_return(frame, return_value)


def install(runner: CellRunner) -> None:
    """Have all that starts a debugger on this rank start this one."""
    global _runner
    _runner = runner
    module: Any = debugger
    module.Pdb = module.InterruptiblePdb = RankPdb
    library: Any = pdb
    library.Pdb, library.set_trace = RankPdb, debugger.set_trace
    runner.shell.InteractiveTB.debugger_cls = RankPdb  # %debug and %pdb
    sys.breakpointhook = sys.__breakpointhook__  # which calls pdb.set_trace


def end() -> None:
    """After a cell: none of its debuggers follows what comes now."""
    trace = getattr(sys.gettrace(), "__self__", None)
    if isinstance(trace, bdb.Bdb):
        sys.settrace(None)


def _is_statement(frame: FrameType) -> bool:
    """Whether it is a statement of a cell at its top level."""
    caller = frame.f_back
    is_run = caller is not None and caller.f_code in interrupts.RUNS
    return is_run and cell_number(frame.f_code.co_filename) is not None
