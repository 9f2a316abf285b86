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


ABORTED = "Fatal Python error: Aborted\n\n"
OWN = f'  File "{CELLS}/9-ab.py", line 1 in <module>\n'


@pytest.mark.parametrize(
    ("why", "log", "told"),
    [
        (
            "killed by SIGSEGV",
            LOG,
            "killed by SIGSEGV (segmentation fault) at cell [5] line 2, in broken, "
            "in string_at (ctypes/__init__.py:519)",
        ),
        (
            "killed by SIGABRT",  # the last of several crashes counts
            f"{LOG}{ABORTED}Current thread 0x1f (most recent call first):\n{OWN}",
            "killed by SIGABRT (aborted) at cell [9] line 1",
        ),
        (
            "killed by SIGABRT",
            f"{ABORTED}Thread 0x1f (most recent call first):\n"
            f'  File "/x/jax/api.py", line 7 in call\n{OWN}',
            "killed by SIGABRT (aborted) in a thread that runs no Python, during cell [9] line 1",
        ),
        # Another process's crash explains no death; half a log is no error.
        ("killed by SIGKILL", LOG, "killed by SIGKILL"),
        ("killed by SIGABRT", LOG, "killed by SIGABRT"),
        ("killed by SIGABRT", "Fatal Python error: ", "killed by SIGABRT"),
    ],
)
def test_a_crash_is_told_with_the_innermost_line_of_a_cell(why: str, log: str, told: str) -> None:
    assert crash_log.explain(why, log) == told


def test_last_words_fold_the_stack_and_keep_what_was_written_before() -> None:
    assert crash_log.excerpt(LOG).splitlines() == [
        "from before",
        "F0000 hlo.cc:12] Check failed: a == b",
        "Segmentation fault at cell [5] line 2, in broken, in string_at (ctypes/__init__.py:519)",
        "  string_at (ctypes/__init__.py:519)",
        "  cell [5] line 2, in broken",
        "  cell [7] line 3",
    ]


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
    ],
)
def test_what_this_pythons_faulthandler_writes_is_understood(deed: str, signal: str) -> None:
    source = f"import faulthandler\nfaulthandler.enable()\ndef crash(): {deed}\ncrash()"
    log = python("-c", source).stderr
    crash = crash_log.find_crash(log)
    assert crash is not None
    assert crash_log.explain(f"killed by {signal}", log).startswith(f"killed by {signal} (")
    assert any(frame.startswith("crash (") for frame in crash.stack)
