"""A choice of the tests of tests/ranks on two hosts: what they prove of one machine holds there.

All of them run there by the command that ``tests/overhosts`` gives.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from rig import Rig

CHECKOUT = Path(__file__).parents[2]
RANKS = "tests/ranks"
AGREEMENT = f"{RANKS}/test_agreement.py::test"
STOPS = f"{RANKS}/test_agreed_stops.py::test"
DEATHS = f"{RANKS}/test_deaths.py::test"
SHARDS = f"{RANKS}/test_shards.py::test"
OPERATION = f"{RANKS}/test_operation.py::test"
CHOICE = (
    f"{RANKS}/test_where.py",
    f"{RANKS}/test_cells.py",
    f"{RANKS}/test_values.py",
    f"{RANKS}/test_stop_button.py",
    f"{SHARDS}_a_layout_says_what_every_rank_says_of_its_shards",
    f"{SHARDS}_a_dead_ranks_part_is_named",
    f"{AGREEMENT}_a_skip_is_told_with_what_each_rank_did",
    f"{AGREEMENT}_what_differs_is_told",
    f"{AGREEMENT}_a_turn_that_one_rank_leaves_out_is_an_error_on_all",
    f"{AGREEMENT}_threads_that_launch_in_another_order_on_each_rank_give_right_numbers",
    f"{STOPS}_a_stop_of_a_training_loop_leaves_all_ranks_at_the_same_step",
    f"{STOPS}_who_waits_for_a_rank_that_dies_is_told_at_once",
    f"{DEATHS}_a_rank_that_is_killed_in_a_collective",
    f"{DEATHS}_the_death_of_the_coordinator_is_told_and_the_ranks_are_replaced",
    f"{RANKS}/test_life.py::test_nothing_outlives_its_owner",
    f"{RANKS}/test_respawn.py::test_a_later_stop_leaves_a_cluster_that_says_what_it_is_and_comes_back"
    "[starting 2 processes]",
    f"{OPERATION}_who_died_while_nobody_was_connected_is_known_after_attach",
    f"{OPERATION}_a_detached_cluster_that_nobody_can_find_any_more_ends_itself[the socket]",
    f"{OPERATION}_a_cluster_whose_folder_is_gone_says_so_and_gets_another",
    f"{OPERATION}_the_folder_may_have_any_name",
)
AT_LEAST = 60  # tests; fewer: some were not found, or left out
PART = os.environ.get("JAXCLUSTER_TEST_HOSTS_PART", "1/1")  # ``2/3``: that third of the files


@pytest.mark.any_jax  # all of it takes 1 to 2 minutes where nothing else runs
@pytest.mark.timeout(900)
def test_what_is_true_of_ranks_on_one_machine_is_true_of_them_on_two_hosts(ssh: Rig) -> None:
    variables = {
        "JAXCLUSTER_TEST_HOSTS": "h1,h2",
        "JAXCLUSTER_SHARED_DIR": str(ssh.shared),
        "PATH": f"{ssh.python.parent}:{ssh['h0'].environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAXCLUSTER_TEST_CASES": "one",
        "JAXCLUSTER_TEST_PART": PART,
    }
    command = ("-m", "pytest", "-p", "no:cacheprovider", "--durations=8")
    try:
        done = ssh["h0"].run(
            *(ssh.python, *command, *CHOICE),
            env=variables,
            cwd=CHECKOUT,
            check=False,
            timeout_s=880,
        )
    finally:
        shutil.rmtree(ssh.shared / "pytest", ignore_errors=True)
    shown = done.stdout[-6000:] + done.stderr[-2000:]
    closing = re.search(r"=+ (\d+) passed(, \d+ deselected)? in [^=]* =+\s*$", done.stdout)
    assert done.returncode == 0 and closing, shown
    assert int(closing[1]) >= (AT_LEAST if PART == "1/1" else 10), shown
