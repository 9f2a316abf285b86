"""A native crash in a rank's log, folded to the user's cells and lines."""

from __future__ import annotations

import pytest
from helpers import python

from jaxcluster.model import crash_log

CELLS = "/tmp/ipykernel_jaxcluster"
LOG = f"""from before
[Gloo] Rank 0 is connected to 3 peer ranks
F0000 hlo.cc:12] Check failed: a == b
Fatal Python error: Segmentation fault

Thread 0x00007fce7effd6c0 (most recent call first):
  File "/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007fcea582bb80 (most recent call first):
  File "/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "{CELLS}/5-abcdef012345.py", line 2 in broken
  File "/lib/python3.11/site-packages/IPython/core/interactiveshell.py", line 3812 in run_code
  File "{CELLS}/7-012345abcdef.py", line 3 in <module>
  File "/lib/python3.11/site-packages/IPython/core/interactiveshell.py", line 3202 in run_cell

Extension modules: numpy._core._multiarray_umath, jaxlib.cpu_feature_guard (total: 41)
"""


def test_a_crash_is_told_with_the_innermost_line_of_a_cell() -> None:
    assert crash_log.explain("killed by SIGSEGV", LOG) == (
        "killed by SIGSEGV (segmentation fault) at cell [5] line 2, in broken, "
        "in string_at (ctypes/__init__.py:519)"
    )


def test_last_words_fold_the_stack_and_keep_what_was_written_before() -> None:
    assert crash_log.excerpt(LOG).splitlines() == [
        "from before",
        "F0000 hlo.cc:12] Check failed: a == b",
        "Segmentation fault at cell [5] line 2, in broken, in string_at (ctypes/__init__.py:519)",
        "  string_at (ctypes/__init__.py:519)",
        "  cell [5] line 2, in broken",
        "  cell [7] line 3",
    ]


@pytest.mark.parametrize("why", ["killed by SIGKILL", "exit code 1", "killed by SIGABRT"])
def test_a_crash_that_is_another_processs_explains_no_death(why: str) -> None:
    assert crash_log.explain(why, LOG) == why


def test_the_last_of_several_crashes_counts() -> None:
    log = LOG + "Fatal Python error: Aborted\n\nCurrent thread 0x1f (most recent call first):\n"
    log += f'  File "{CELLS}/9-ab.py", line 1 in <module>\n'
    assert crash_log.explain("killed by SIGABRT", log) == (
        "killed by SIGABRT (aborted) at cell [9] line 1"
    )


def test_a_thread_without_python_is_told_with_the_cell_that_ran() -> None:
    log = "Fatal Python error: Aborted\n\nThread 0x1f (most recent call first):\n"
    log += f'  File "/x/jax/api.py", line 7 in call\n  File "{CELLS}/9-ab.py", line 4 in <module>\n'
    assert crash_log.explain("killed by SIGABRT", log).endswith(
        "in a thread that runs no Python, during cell [9] line 4"
    )


@pytest.mark.parametrize("log", ["", "Fatal Python error: ", "Fatal Python error: x\n\n  File "])
def test_half_a_log_is_no_error(log: str) -> None:
    crash_log.explain("killed by SIGSEGV", log)
    crash_log.excerpt(log)


def test_a_log_without_a_crash_ends_as_it_ends() -> None:
    assert crash_log.excerpt("".join(f"line {k}\n" for k in range(9))) == "\n".join(
        f"line {k}" for k in range(3, 9)
    )


@pytest.mark.parametrize(
    ("deed", "signal"),
    [
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 7)", "SIGBUS"),
        ("import os; os.kill(os.getpid(), 8)", "SIGFPE"),
        ("import os; os.kill(os.getpid(), 4)", "SIGILL"),
    ],
)
def test_what_this_pythons_faulthandler_writes_is_understood(deed: str, signal: str) -> None:
    source = f"import faulthandler\nfaulthandler.enable()\ndef crash(): {deed}\ncrash()"
    crash = crash_log.find_crash(python("-c", source).stderr)
    assert crash is not None
    assert crash.signal == signal
    assert any(frame.startswith("crash (") for frame in crash.stack)
