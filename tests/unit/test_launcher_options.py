"""From the words of ``%jaxcluster start --launcher ...`` to a launcher, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sitelauncher import launched

from jaxcluster.errors import UsageError
from jaxcluster.launchers.base import Launcher
from jaxcluster.launchers.hosts import Host
from jaxcluster.launchers.ipp import IPP
from jaxcluster.launchers.mpi import MPI
from jaxcluster.launchers.slurm import Slurm
from jaxcluster.launchers.ssh import SSH
from jaxcluster.launchers.tpu import TPU
from jaxcluster.options.arguments import Parser
from jaxcluster.options.known import known


def refused(line: str) -> str:
    with pytest.raises(UsageError) as caught:
        launched(line)
    return str(caught.value)


H1, H2 = Host("h1", 2), Host("h2", 2)


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("-n 4 --launcher local", None),
        ("--launcher ssh --hosts h1:2,h2:2", SSH((H1, H2))),
        (
            "--launcher ssh --hosts h1,h2 -n 4 --user me --port 2222 --jump gate --ssh-config c "
            "--ssh-option A=1 --ssh-option 'B=2 3' --ssh 'ssh -v' --direct",
            SSH(
                (Host("h1"), Host("h2")), 4, ("ssh", "-v"), "c", ("A=1", "B=2 3"), "gate", "me",
                2222, True,
            ),
        ),
        (
            "--launcher slurm --nodes 2 --ntasks-per-node 4 --partition gpu --account a --qos q "
            "--time 2:00:00 --gres gpu:4 --constraint 'a100&nvlink' --cpus-per-task 8 --mem 64G "
            "--salloc exclusive --salloc=--mail-type=END --new-job",
            Slurm(
                None, 2, 4, "gpu", "a", "q", "2:00:00", "gpu:4", "a100&nvlink", 8, "64G",
                ("exclusive", "--mail-type=END"), True,
            ),
        ),
        (
            "--launcher mpi --hosts h1:2,h2:2 --mpiexec /opt/mpiexec --mpi-args '--mca a b'",
            MPI((H1, H2), None, "/opt/mpiexec", ("--mca", "a", "b")),
        ),
        ("--launcher mpi", MPI()),
        ("--launcher tpu", TPU(())),
        (
            "--launcher tpu --tpu pod --zone z --project p --internal-ip --user me -n 8",
            TPU((), 8, user="me", tpu="pod", zone="z", project="p", internal_ip=True),
        ),
        ("--launcher tpu --hosts h1:2,h2:2 --direct", TPU((H1, H2), direct=True)),
        (
            "--launcher ipp:pbs --ipp-profile mine --nodes 2 -n 8",
            IPP("pbs", "mine", 2, 8),
        ),
    ],
)  # fmt: skip
def test_what_is_typed_becomes_a_launcher(
    line: str, launcher: Launcher | None, tmp_path: Path
) -> None:
    assert launched(line) == (launcher, "")
    (tmp_path / "hosts").write_text("h1 slots=2\nh2 slots=2\n")
    read, python = launched(f"--launcher ssh --hostfile {tmp_path}/hosts --python p")
    assert (read, python) == (SSH((H1, H2)), "p")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--launcher shh", "There is no launcher 'shh' (did you mean ssh?)."),
        ("--launcher ssh:x --hosts h1", "There is no launcher 'ssh:x'"),
        ("--launcher ipp", "ipp needs the name of one of ipyparallel's launchers."),
        ("--launcher ssh", "--launcher ssh needs hosts."),
        ("--hosts h1", "--launcher local does not know --hosts, an option of ssh, mpi and tpu."),
        (
            "--launcher ssh --hosts h1 --partition gpu",
            "--launcher ssh does not know --partition, an option of slurm.\nIt takes: --hosts",
        ),
        ("--launcher slurm --nodes two", "--nodes must be a whole number from 1 up, not 'two'."),
        ("--launcher slurm --partition ''", "--partition has no value."),
        ("--launcher slurm --partition 'a\nb'", "--partition can't be 'a\\nb'."),
        ("--launcher ssh --hosts h1:two", "'h1:two' is not a host"),
        ("--launcher ssh --hosts h1 --port 99999", "--port: 99999 is not a port"),
        ("--launcher ssh --hosts h1 --ssh-option Foo", "--ssh-option can't be 'Foo'."),
        ("--launcher ssh --hosts h1 --jump=-oX=y", "--jump can't be '-oX=y'."),
        ("--launcher ssh --hosts h --hostfile f", "--hosts and --hostfile can't be used together."),
        ("--launcher ssh --hosts h1 --ssh 'a \"b'", "--ssh must be words with closed quotes"),
        ("--launcher tpu --tpu pod --hosts h1", "--tpu and --hosts can't be used together."),
        ("--launcher tpu --zone z --hosts h1", "--zone goes with --tpu NAME."),
        ("--launcher ssh --host h1", "there is no --host (did you mean --hosts?)"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_type(line: str, said: str) -> None:
    told = refused(line)
    assert said in told
    assert "\n" in told


def test_every_option_is_refused_by_every_launcher_that_does_not_know_it() -> None:
    bases = {
        kind: f"--launcher {kind}{':pbs' if kind == 'ipp' else ''}" for kind in known().examples
    }
    for option in known().of_launchers.values():
        value = "" if not option.metavar else "=2"
        for kind, base in bases.items():
            if kind not in option.launchers:
                told = refused(f"{base} {option.flag}{value}")
                assert told.startswith(f"--launcher {kind} does not know {option.flag}, ")
                assert known().examples[kind] in told


# ------------------------------------------------------------------------ the form of JupyterLab

# What the form makes of what was chosen in it; its own tests read the same file.
FORM = json.loads((Path(__file__).parents[1] / "golden/start-lines.json").read_text())


@pytest.mark.parametrize("example", FORM, ids=lambda example: example["line"])
def test_the_line_that_the_form_makes_starts_what_was_chosen(example: dict[str, Any]) -> None:
    given, chosen = Parser("%jaxcluster start").read(example["line"]), example["options"]
    kind = (given.launcher or "local").partition(":")[0]
    assert kind == chosen.get("launcher", "local")
    if given.launcher != "auto":  # there is no allocation here
        launcher, _ = launched(example["line"])
        assert (launcher.name if launcher else "local") == kind
