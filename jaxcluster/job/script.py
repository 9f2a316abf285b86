"""One process of ``jaxcluster run``: it becomes a JAX process as ranks do, then runs a script.

The script has a process as from ``python FILE`` or ``python -m MODULE``, with its own ``__main__``
and ``sys.argv``. It has no shell of ours, and of our threads only the agreement's. At its end
Python does all that it does at the end of any process. The output goes to two files of the agent.
"""

from __future__ import annotations

import builtins
import linecache
import os
import runpy
import signal
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec

from jaxcluster.host.facts import engine_facts
from jaxcluster.job.process import Job, give_back_in_children
from jaxcluster.rank import log
from jaxcluster.rank.bootstrap import become_jax_process
from jaxcluster.rank.control import ControlChannel
from jaxcluster.rank.private import coordination
from jaxcluster.rank.private.launches import is_agreed
from jaxcluster.supervision.starting import begin_users_code
from jaxcluster.wire import forks
from jaxcluster.wire.ops.start import Facts, InitializeRequest, Script

STALL_S = 5.0  # a longer wait for other ranks is reported


def main(rank: int, folder: str, host: str, num_ranks: int) -> Callable[[], None]:
    """Become a JAX process.

    Args:
      folder: its agent's.
      host: the name of its host, where that is not the notebook's.

    Returns:
      what runs the script.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = Job(rank, num_ranks, STALL_S, leaves_alone=True)
    control = ControlChannel(forks.rank_socket(folder, rank))
    facts = engine_facts(rank, host)
    control.handle(Facts, "now", lambda request: facts)
    initialize, run = control.inbox(InitializeRequest), control.inbox(Script)
    control.start()
    become_jax_process(initialize, job, lambda line: None)
    asked = run.get()
    asked.reply()
    control.close()
    for descriptor, end in (1, "stdout"), (2, "stderr"):
        path = f"{folder}/{forks.RANKS}/rank-{rank}.{end}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    return lambda: run_script(asked.body, job)


def run_script(script: Script, job: Job) -> None:
    """Run it, and exit."""
    is_checked, pid = is_agreed(), os.getpid()
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(module)["__builtins__"] = builtins  # the module, as Python has it there
    sys.argv, sys.orig_argv = [*script.argv], [sys.executable, *script.argv]
    if os.environ.get("MPLBACKEND", "").startswith("module://"):
        del os.environ["MPLBACKEND"]  # matplotlib's for notebooks
    begin_users_code(script.folder)
    if is_checked:
        job.begin()
        job.stop_on(signal.SIGTERM)
    else:
        coordination.leave_without_others()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        give_back_in_children(signal.SIGTERM)
    error: BaseException | None = None
    try:
        path, spec, code = _found(script)
        job.files[path] = 1
        package = spec.parent if spec else None
        runpy._run_code(code, vars(module), None, "__main__", spec, package, path)  # type: ignore[attr-defined]
    except BaseException as raised:
        error = raised
    if error is not None and is_checked and os.getpid() == pid:
        job.end_by(error)
    if error is not None and not isinstance(error, SystemExit):
        trace = error.__traceback__ and error.__traceback__.tb_next  # not our line, nor runpy's
        error.__traceback__ = trace and trace.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        error = SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1)
    if os.getpid() != pid:  # the script has forked it: JAX would crash in it at Python's own end
        status = error.code if error is not None else 0
        if not isinstance(status, int | None):
            print(status, file=sys.stderr)
        log.end_process(status if isinstance(status, int) else status is not None)
    if error is not None:
        raise error


def _found(script: Script) -> tuple[str, ModuleSpec | None, types.CodeType]:
    """The script's path and code; where Python finds it, if it is a module.

    Raises:
      SystemExit: there is no such module.
      SyntaxError: it is not valid Python.
    """
    if script.module:
        try:
            _, spec, code = runpy._get_module_details(script.module)  # type: ignore[attr-defined]
        except ImportError as error:
            sys.exit(f"{sys.executable}: {error}")
        sys.argv[0] = spec.origin
        return spec.origin, spec, code
    # As it was sent: this host may not have it, and it may be edited meanwhile.
    path, lines = script.path, script.source.splitlines(keepends=True)
    linecache.cache[path] = (len(script.source), None, lines, path)
    return path, None, compile(script.source, path, "exec", dont_inherit=True)
