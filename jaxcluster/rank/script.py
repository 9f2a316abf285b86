"""One process of ``jaxcluster run``: it becomes a JAX process as ranks do, then runs a script.

The script has a process as ``python FILE`` or ``python -m MODULE`` gives it one: its own
``__main__`` and ``sys.argv``, no thread and no shell of ours but the agreement's, and at its end
all that Python does at the end of a process. What it prints goes to two files of the agent's.
"""

from __future__ import annotations

import builtins
import contextlib
import linecache
import os
import runpy
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

from jaxcluster.host.facts import engine_facts
from jaxcluster.rank import log
from jaxcluster.rank.bootstrap import become_jax_process
from jaxcluster.rank.control import ControlChannel
from jaxcluster.rank.job import Job, give_back_in_children, is_agreed
from jaxcluster.rank.private import coordination
from jaxcluster.supervision.starting import begin_users_code
from jaxcluster.wire import forks
from jaxcluster.wire.ops.start import Facts, InitializeRequest, Script

STALL_S = 5.0  # of waiting for other ranks, which is told then


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
    for descriptor, end in (1, "out"), (2, "err"):
        path = f"{folder}/{forks.RANKS}/rank-{rank}.{end}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    return lambda: run_script(asked.body, job)


def run_script(script: Script, job: Job) -> None:
    """Run it, and exit."""
    is_checked, pid = is_agreed(), os.getpid()
    module = sys.modules["__main__"] = types.ModuleType("__main__")
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
    try:
        exec(_compiled(script, module.__dict__, job.files), module.__dict__)
    except BaseException as error:
        if os.getpid() != pid:
            _end_child(error)
        if is_checked:
            job.end_by(error)
        if isinstance(error, SystemExit):
            raise
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # not our line
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None
    if os.getpid() != pid:
        _end_child(SystemExit(0))


def _end_child(error: BaseException) -> None:
    """End a process that the script has forked: JAX would crash in it at Python's own end."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        error = SystemExit(1)
    if not isinstance(error.code, int | None):
        with contextlib.suppress(Exception):  # the stream may be the script's
            print(error.code, file=sys.stderr)
    log.end_process(error.code if isinstance(error.code, int) else error.code is not None)


def _compiled(script: Script, namespace: dict[str, Any], files: dict[str, int]) -> types.CodeType:
    """The script's code; ``__main__`` becomes what Python makes of it.

    Raises:
      SystemExit: there is no such module.
      SyntaxError: it is not valid Python.
    """
    path, code = script.path, None
    namespace.update(__builtins__=builtins, __annotations__={})
    if script.module:
        try:
            _, spec, code = runpy._get_module_details(script.module)  # type: ignore[attr-defined]
        except ImportError as error:
            sys.exit(f"{sys.executable}: {error}")
        sys.argv[0] = path = spec.origin
        namespace.update(
            __package__=spec.parent, __spec__=spec, __cached__=spec.cached, __loader__=spec.loader
        )
    else:
        # As it was sent: this host may not have it, and it may be edited meanwhile.
        lines = script.source.splitlines(keepends=True)
        linecache.cache[path] = (len(script.source), None, lines, path)
        code = compile(script.source, path, "exec", dont_inherit=True)
    namespace["__file__"] = path
    files[path] = 1
    return code
