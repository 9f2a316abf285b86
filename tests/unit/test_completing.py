"""A rank's first completions, asked for at the same time."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import json, threading
from types import SimpleNamespace
from IPython.core.interactiveshell import InteractiveShell
from jaxcluster.engine import inspection
from jaxcluster.wire.ops.cells import Complete

shell = InteractiveShell.instance()
shell.user_ns["only_on_the_ranks"] = 1
runner, answers = SimpleNamespace(shell=shell), []

def ask():
    try:
        found = inspection.complete(runner, Complete("only_", 5)).matches
        answers.append([word for word, kind in found])
    except BaseException as error:
        answers.append(repr(error))

inspection.WAITS_S = 60
threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
ask()
inspection.WAITS_S = 0.01
with inspection._completing:
    ask()
print(json.dumps(answers))
"""


def test_several_at_once_are_answered_and_so_are_those_after_them() -> None:
    """In a new process each time: what jedi imports first is what two threads can break."""
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-P", "-c", CODE], capture_output=True, text=True, check=True
        )
        answers = json.loads(run.stdout.splitlines()[-1])
        assert answers[:-1] == [["only_on_the_ranks"]] * 5
        assert answers[-1] == [], "one that waits for another for too long"
