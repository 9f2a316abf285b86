"""A choice of the tests of tests/ranks on two hosts: what they prove of one machine holds there.

All of them run there by the command that ``tests/overhosts`` gives.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from rig import Rig

CHECKOUT = Path(__file__).parents[2]
CHOICE = (
    "tests/ranks/test_where.py",
    "tests/ranks/test_cells.py",
    "tests/ranks/test_values.py",
    "tests/ranks/test_shards.py",
    "tests/ranks/test_stop_button.py",
    "tests/ranks/test_deaths.py",
    "tests/ranks/test_coordinator.py",
    "tests/ranks/test_drain.py",
)
LEAVE_OUT = "any_jax"
AT_LEAST = 150  # tests; fewer: some were not found, or left out


@pytest.mark.timeout(600)
def test_what_is_true_of_ranks_on_one_machine_is_true_of_them_on_two_hosts(ssh: Rig) -> None:
    variables = {
        "JAXCLUSTER_TEST_HOSTS": "h1,h2",
        "JAXCLUSTER_SHARED_DIR": str(ssh.shared),
        "PATH": f"{ssh.python.parent}:{ssh['h0'].environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = ("-m", "pytest", "-p", "no:cacheprovider", "--durations=8", "-m", f"not {LEAVE_OUT}")
    try:
        done = ssh["h0"].run(
            *(ssh.python, *command, *CHOICE),
            env=variables,
            cwd=CHECKOUT,
            check=False,
            timeout_s=580,
        )
    finally:
        shutil.rmtree(ssh.shared / "pytest", ignore_errors=True)
    shown = done.stdout[-6000:] + done.stderr[-2000:]
    closing = re.search(r"=+ (\d+) passed(, \d+ deselected)? in [^=]* =+\s*$", done.stdout)
    assert done.returncode == 0 and closing, shown
    assert int(closing[1]) >= AT_LEAST, shown
