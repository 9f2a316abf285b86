"""The words that users type: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from jaxcluster.errors import UsageError
from jaxcluster.notebook.magics import JaxClusterMagics
from jaxcluster.options.arguments import (
    Help,
    Parser,
    shards_line,
    split_spmd,
    start_options,
    without_comment,
)
from jaxcluster.options.commands import REMOVED
from jaxcluster.options.table import COMMON, is_seconds


def started(line: str) -> dict[str, Any]:
    return start_options(Parser("%jaxcluster start").read(line))


def complaint(parser: Parser, line: str) -> str:
    with pytest.raises(UsageError) as caught:
        parser.read(line)
    return str(caught.value)


# --------------------------------------------------------------------------- start


def test_all_that_start_takes_is_an_argument_in_python_too() -> None:
    takes = {one.name for one in Parser("%jaxcluster start").options if not one.launchers}
    assert takes - {"dry_run"} == set(COMMON)


def test_every_argument_of_initialize_can_be_given() -> None:
    options = started(
        "--num-processes 2 --local-device-ids 0,1 --coordinator-address 10.0.0.1:9000 "
        "--coordinator-bind-address 0.0.0.0:9000 --initialization-timeout 7 "
        "--heartbeat-timeout-seconds 11"
    )
    assert options == {
        "num_processes": 2,
        "local_device_ids": [0, 1],
        "coordinator_address": "10.0.0.1:9000",
        "coordinator_bind_address": "0.0.0.0:9000",
        "initialization_timeout": 7,
        "heartbeat_timeout_seconds": 11,
    }


def test_a_short_option_may_stand_before_its_value() -> None:
    assert Parser("%jaxcluster start").read("-n4").num_processes == 4
    with pytest.raises(UsageError, match="-n must be a whole number from 1 up, not 'ame'"):
        Parser("%jaxcluster start").read("-name x")


@pytest.mark.parametrize(
    ("word", "value"),
    [("90", 90.0), ("1.5", 1.5), ("30s", 30.0), ("15m", 900.0), ("2h", 7200.0), ("1:00:30", 3630)],
)
def test_a_cells_times_may_have_a_unit(word: str, value: float) -> None:
    options = Parser("%%spmd").read(f"--timeout {word}")
    assert options.timeout_s == value
    for wrong in ("m", "15x", "1m30s", "''", "0", "nan"):
        with pytest.raises(UsageError, match="--timeout must be seconds above 0, or a time"):
            Parser("%%spmd").read(f"--timeout {wrong}")


def test_environment_variables_may_hold_spaces_and_equal_signs() -> None:
    options = started('--env XLA_FLAGS="--xla_a=1 --xla_b" --env A= --env B=c=d')
    assert options["env"] == {"XLA_FLAGS": "--xla_a=1 --xla_b", "A": "", "B": "c=d"}


def test_local_device_ids_are_one_list_for_all_or_one_for_each() -> None:
    assert started("--local-device-ids 1")["local_device_ids"] == [1]
    assert started("--local-device-ids 0,1/2,3")["local_device_ids"] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-n four", "-n must be a whole number from 1 up, not 'four'."),
        ("-n", "-n needs a value."),
        ("--all  # don't", "there is no --all"),
        ("-m 4", "there is no -m; %jaxcluster start --help has what there is."),
        ("4", "there is no 4 (did you mean -n 4?)"),
        ("--device-per-process 2", "(did you mean --devices-per-process?)"),
        ("--devices 2", "(did you mean --devices-per-process?)"),
        (
            "--devices-per-process two",
            "--devices-per-process must be a whole number from 1 up, or all, not 'two'.",
        ),
        ("--env A", "--env must be of the form NAME=VALUE, not 'A'."),
        ("--env =1", "must be of the form NAME=VALUE, not '=1'."),
        (
            "--local-device-ids a",
            "must be 0,1 (every rank) or 0/1 (a list for each rank), not 'a'.",
        ),
        ("--timeout soon", "must be seconds above 0, or a time such as 15m or 2h, not 'soon'."),
        ("--name 'exp", "No closing quotation"),
        ("--zzz", "there is no --zzz; %jaxcluster start --help has what there is."),
    ],
)
def test_what_start_does_not_take_says_why_with_an_example(line: str, message: str) -> None:
    text = complaint(Parser("%jaxcluster start"), line)
    assert text.startswith("%jaxcluster start: ")
    assert message in text
    assert text.endswith("\nFor example: %jaxcluster start -n 4 --devices-per-process 2")


# --------------------------------------------------------------------------- spmd


def test_a_cell_with_all_options() -> None:
    parsed = Parser("%%spmd").read("--ranks 0,2-3 --all --out h --timeout 1.5 --async")
    given = {"ranks": "0,2-3", "all_ranks": True, "out": "h", "timeout_s": 1.5, "background": True}
    assert vars(parsed) == {**given, "profile": None}


@pytest.mark.parametrize(
    ("line", "options", "source"),
    [
        ("x.sharding", "", "x.sharding"),
        ("--all x.sharding", "--all", "x.sharding"),
        ("--ranks 0,2-3 --timeout=5  f(x,  'a b')", "--ranks 0,2-3 --timeout=5", "f(x,  'a b')"),
        ("--all", "--all", ""),
        ("-x", "", "-x"),
        ("--x + 1", "", "--x + 1"),
        ("- --all", "", "- --all"),
        ("f(--all)", "", "f(--all)"),
        ("x --all", "", "x --all"),
        ("--profile step(x)", "--profile", "step(x)"),
        ("--profile=before step(x)", "--profile=before", "step(x)"),
    ],
)
def test_options_stand_before_the_expression_of_a_line(
    line: str, options: str, source: str
) -> None:
    assert split_spmd(line) == (options, source)


def test_a_line_with_an_option_that_there_is_not_names_one_that_there_is() -> None:
    with pytest.raises(UsageError, match=r"there is no --rank \(did you mean --ranks\?\)"):
        split_spmd("--rank 1 x")
    with pytest.raises(UsageError, match="there is no --al "):
        split_spmd("--ranks 0 --al x")
    with pytest.raises(Help, match="usage: %%spmd"):
        split_spmd("--help")


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("-n 4   # in the job", "-n 4"),
        ("-n 4 # it's 'mine'", "-n 4"),
        ('--env \'A=# b\' --env "B=\\" # c" # d', '--env \'A=# b\' --env "B=\\" # c"'),
        ("--env A=#b", "--env A=#b"),
        ("# all", ""),
        ("params['#']", "params['#']"),
        ("it's", "it's"),
    ],
)
def test_a_comment_may_stand_behind_a_magic(line: str, kept: str) -> None:
    assert without_comment(line) == kept


# ------------------------------------------------------------------------- messages


def test_a_command_takes_its_arguments() -> None:
    assert Parser("%jaxcluster logs").read("2").rank == 2
    assert Parser("%jaxcluster logs").read("").rank is None
    parsed = Parser("%jaxcluster status").read("--mesh")
    assert (parsed.mesh, parsed.stacks) == ("", None)
    assert Parser("%jaxcluster restart").read("--num-processes 8").num_processes == 8
    assert Parser("%pull").read("a b --as c").names == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("logs two", "RANK must be a number, such as 2, not 'two'."),
        ("report x", "CELL must be a cell's number, such as 7, not 'x'."),
        ("outputs --history -1", "--history must be a number, such as 2, not '-1'."),
    ],
)
def test_a_value_of_another_kind_is_refused(line: str, told: str) -> None:
    command, _, rest = line.partition(" ")
    assert told in complaint(Parser(f"%jaxcluster {command}"), rest)
    assert Parser("%jaxcluster report").read("[7]").cell == 7


# --------------------------------------------------------------------------- help


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_every_command_says_what_it_takes(word: str) -> None:
    for parser in (Parser("%jaxcluster start"), Parser("%%spmd"), Parser("%push")):
        with pytest.raises(Help) as caught:
            parser.read(f"--nonsense {word}")
        assert str(caught.value).startswith(f"usage: {parser.prog}")
    with pytest.raises(Help, match="usage: %shards NAME"):
        shards_line(f"x {word}")


@pytest.mark.parametrize("command", REMOVED)
def test_a_removed_command_names_what_takes_its_place(command: str) -> None:
    commands = JaxClusterMagics(SimpleNamespace(user_ns={})).commands
    with pytest.raises(UsageError, match=f"%jaxcluster {command} was removed") as caught:
        commands.run(f"{command} x")
    assert REMOVED[command] in str(caught.value)


def listed(topic: str) -> set[str]:
    """The options of a start's help."""
    told = Parser("%jaxcluster start").format_help(topic)
    return {line.split()[0] for line in told.splitlines() if re.match(r"  \S", line)}


def test_the_help_of_a_start_has_what_everybody_needs_and_a_launchers_own_on_demand() -> None:
    assert len(listed("")) == 10
    assert {"-n", "--launcher", "--hosts", "--dry-run"} <= listed("")
    assert {"--hosts", "--jump", "--python"} <= listed("ssh")
    assert not {"-n", "--partition"} & listed("ssh")
    assert "--partition" in listed("slurm")
    with pytest.raises(UsageError, match=r"no launcher 'slrum' \(did you mean slurm\?\)"):
        listed("slrum")
    assert listed("") | listed("ssh") | listed("slurm") < listed("all")


@pytest.mark.parametrize(
    "seconds", [0, -1, 0.0, float("nan"), float("inf"), -float("inf"), True, "3", None]
)
def test_what_is_no_length_of_time_is_refused(seconds: Any) -> None:
    assert not is_seconds(seconds)


def test_the_doctor_takes_a_start_on_other_hosts_or_nothing() -> None:
    parsed = Parser("%jaxcluster doctor").read("--launcher ssh --hosts h1:2,h2")
    assert start_options(parsed)["hosts"] == "h1:2,h2"
    assert Parser("%jaxcluster doctor").read("").launcher is None
    for word in ("--detach", "what"):
        with pytest.raises(UsageError, match=f"there is no {word}"):
            Parser("%jaxcluster doctor").read(word)
