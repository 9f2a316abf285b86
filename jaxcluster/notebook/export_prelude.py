"""What is in an exported script beside its cells: the start of JAX, and small helpers."""

from __future__ import annotations

START = """
if not jax.distributed.is_initialized():  # jaxcluster run has done it
{devices}    try:
        jax.distributed.initialize()
    except (ValueError, RuntimeError) as error:  # by hand, MPICH, Open MPI 5
        raise SystemExit(
            f"jax.distributed.initialize() failed: {{error}}\\nThis script is started by: "
            "jaxcluster run SCRIPT   or, by any MPI: jaxcluster run --launcher mpi SCRIPT"
        ) from None
"""
# XLA takes each machine's CPU devices for a slice, and has no option for that (jax 0.10.2, 0.12).
ONE_SLICE = """
    if jax.default_backend() == "cpu":  # jax.make_mesh refuses those of several hosts
        for name in ("slice_index", "partition_index"):
            setattr(type(jax.devices()[0]), name, property(lambda device: 0))
"""

# Helpers have names that no cell has, and take nothing from its: it may bind os to anything.
SHOW = '''
def _nb_show(value):
    """What the notebook showed under a cell: its last expression, by process 0."""
    import jax
    from jax.experimental import multihost_utils

    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        value = multihost_utils.process_allgather(value, tiled=True)
    if value is not None and jax.process_index() == 0:
        print(repr(value), flush=True)
'''
RUN_FILE = '''
def _nb_run(*argv):
    """A script with its arguments, in place of %run: its names are bound here."""
    import runpy
    import sys

    before, sys.argv = sys.argv, list(argv)
    try:
        names = runpy.run_path(argv[0], run_name="__main__")
    finally:
        sys.argv = before
    globals().update((k, v) for k, v in names.items() if not k.startswith("__"))
'''
AWAIT = '''
def _nb_await(cell, loop=[]):
    """A cell that awaits, on one event loop for all of them. Its lines are this file's."""
    import ast
    import asyncio
    import atexit
    import inspect
    import sys

    above = "\\n" * (sys._getframe(1).f_lineno - 1)
    code = compile(above + cell, __file__, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def run():
        waiting = eval(code, globals())
        if inspect.isawaitable(waiting):
            await waiting

    if not loop:
        loop.append(asyncio.new_event_loop())
        atexit.register(loop[0].close)
    loop[0].run_until_complete(run())
'''
SHELL = '''
def _nb_shell(command):
    """In place of !command."""
    import subprocess

    subprocess.run(command, shell=True)
'''
LINES = '''
def _nb_lines(command):
    """The lines that a command prints."""
    import subprocess

    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout.splitlines()
'''
CD = '''
def _nb_cd(folder):
    """In place of %cd."""
    import os

    os.chdir(os.path.expanduser(folder))
'''
ENV = '''
def _nb_env(variable, value):
    """In place of %env."""
    import os

    os.environ[variable] = value
'''
HELPERS = {
    "show": SHOW,
    "run": RUN_FILE,
    "await": AWAIT,
    "shell": SHELL,
    "lines": LINES,
    "cd": CD,
    "env": ENV,
}
IMPORTS = {"display": "from IPython.display import display"}
