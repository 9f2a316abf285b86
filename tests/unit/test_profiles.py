"""Profiles: where they stand, what they hold, which one a start takes, and what is refused."""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.arguments import read_doctor, start_options, start_parser
from jaxcluster.cluster import dry_run, make_spec
from jaxcluster.doctor import Check, check_profiles
from jaxcluster.errors import UsageError
from jaxcluster.launchers import detection
from jaxcluster.model.rewrite import AutoMode
from jaxcluster.notebook.completion import Completion
from jaxcluster.options import profiles
from jaxcluster.options.files import MOST_BYTES, places, read
from jaxcluster.options.known import known
from jaxcluster.options.value_types import COUNT, SECONDS
from jaxcluster.panel import operations
from jaxcluster.panel.model import Model
from jaxcluster.plan.repeated_start import differences

TEAM = """\
[profile.team]
launcher = "ssh"
hosts = "h1:2,h2:2"
env = { A = "1" }
"""
# A value of each kind of option, as a profile has it; else a text.
VALUES: dict[str, Any] = {
    "devices-per-process": '"all"',
    "platform": '"cpu"',
    "launcher": '"ssh"',
    "name": '"exp"',
    "env": '{ A = "1 2", B = "" }',
    "local-device-ids": "[[0, 1], [2, 3]]",
    "coordinator-address": '"unix:/tmp/here"',
    "sbatch": '["exclusive", "--mail-type=END"]',
    "ssh-option": '["A=1", "B=2 3"]',
}


class Files:
    """The three files, and the folder of the notebook."""

    def __init__(self, root: Path) -> None:
        self.user = root / "home/.config/jaxcluster/jaxcluster.toml"
        self.site = root / "etc/jaxcluster.toml"
        self.project = root / "home/project"
        self.folder = self.project / "notebooks"
        self.near = self.folder / "jaxcluster.toml"
        for path in (self.user, self.site, self.near):
            path.parent.mkdir(parents=True, exist_ok=True)

    def started(self, line: str = "") -> tuple[dict[str, Any], list[str]]:
        """(what make_spec is given, what is said) of a start."""
        said: list[str] = []
        parsed = start_parser("%jaxcluster start").read(line)
        return start_options(parsed, said.append), said

    def spec(self, line: str = "") -> Any:
        return make_spec(**self.started(line)[0])

    def refused(self, line: str = "") -> str:
        with pytest.raises(UsageError) as caught:
            make_spec(**self.started(line)[0])
        return str(caught.value)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    made = Files(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("JAXCLUSTER_SITE_CONFIG", str(made.site))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(made.folder)
    return made


# ------------------------------------------------------------------------------ where they lie


def test_the_users_file_comes_first_then_the_sites_then_the_folders(files: Files) -> None:
    files.near.write_text("")
    found = places(os.environ, str(files.folder))
    assert found == [("user", files.user), ("site", files.site), ("folder", files.near)]
    config = {"XDG_CONFIG_HOME": "/conf"}
    assert places(config, None) == [
        ("user", Path("/conf/jaxcluster/jaxcluster.toml")),
        ("site", Path("/etc/jaxcluster/jaxcluster.toml")),
    ]
    # A relative one would be a file that lies where the notebook does.
    relative = {"XDG_CONFIG_HOME": "conf", "JAXCLUSTER_SITE_CONFIG": "jaxcluster.toml"}
    assert places(relative, None) == [
        ("user", files.user),
        ("site", Path("/etc/jaxcluster/jaxcluster.toml")),
    ]


@pytest.mark.parametrize(
    ("file", "git", "found"),
    [
        ("project", "project", True),  # the root of the repository, above the notebook's folder
        ("project", "", True),  # below the home
        ("project", "project/notebooks", False),  # beyond the root of the repository
        ("", "", True),  # the home itself
        ("..", "", False),  # above the home
        ("..", "..", False),  # though all of it be a repository
    ],
)
def test_a_file_above_counts_up_to_the_repositorys_root_or_the_home(
    files: Files, tmp_path: Path, file: str, git: str, found: bool
) -> None:
    home = tmp_path / "home"
    (home / file / "jaxcluster.toml").write_text("[profile.near]\nn = 3\n")
    if git:
        (home / git / ".git").mkdir()
    assert (profiles.load().names() == ["near"]) is found


def test_outside_of_home_and_repository_a_folder_alone_counts(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "scratch/mine"
    below.mkdir(parents=True)
    (tmp_path / "scratch/jaxcluster.toml").write_text("[profile.above]\nn = 3\n")
    monkeypatch.chdir(below)
    assert profiles.load().names() == []
    (below / "jaxcluster.toml").write_text("[profile.here]\nn = 3\n")
    assert profiles.load().names() == ["here"]
    below.joinpath("jaxcluster.toml").unlink()
    monkeypatch.setenv("HOME", "/")  # all is below that
    assert profiles.load().names() == []


@pytest.mark.parametrize("where", ["home/project", "scratch"])
@pytest.mark.parametrize(("owner", "found"), [(0, True), (os.geteuid(), True), (12345, False)])
def test_a_repository_of_another_users_makes_no_project(
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    owner: int,
    found: bool,
) -> None:
    """Whoever may write to /tmp can make a repository of it. Git itself trusts none of those."""
    below = tmp_path / where / "mine"
    below.mkdir(parents=True)
    (tmp_path / where / ".git").mkdir()
    (tmp_path / where / "jaxcluster.toml").write_text("[profile.above]\nn = 3\n")
    monkeypatch.setattr("jaxcluster.options.files._owner", lambda path: owner)
    monkeypatch.chdir(below)
    assert (profiles.load().names() == ["above"]) is found
    (below / "jaxcluster.toml").write_text("[profile.here]\nn = 3\n")
    assert "here" in profiles.load().names()


def test_a_notebook_in_the_users_own_folder_sees_its_file_once(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.user.write_text(f'default = "team"\n{TEAM}')
    monkeypatch.chdir(files.user.parent)
    assert profiles.load().table().count("team  ") == 1
    assert files.spec().profile == "team"


def test_without_files_it_is_said_where_to_put_one(files: Files) -> None:
    said = profiles.load().table()
    assert said.startswith("There are no profiles yet.")
    assert "# ~/.config/jaxcluster/jaxcluster.toml" in said
    example = "\n".join(line[4:] for line in said.splitlines() if line.startswith("    "))
    files.user.write_text(example)
    assert files.spec("--profile team").options == {"hosts": "h1:2,h2:2"}


# ------------------------------------------------------------------------------ what they hold


@pytest.mark.parametrize("option", known().in_profiles.values(), ids=lambda option: option.flag)
def test_any_option_of_a_start_is_the_same_in_a_profile_as_typed(files: Files, option: Any) -> None:
    word = option.flag.removeprefix("--")
    kind = next(iter(option.launchers), "local")
    value = VALUES.get(word) or ("true" if not option.metavar else '"2"')
    if option.kind in (COUNT, SECONDS):
        value = "2"
    file = f"[profile.one]\n{word} = {value}\n"
    if option.launchers:
        file += f'launcher = "{kind}{":pbs" if kind == "ipp" else ""}"\n'
    for written in (file, file.replace(word, word.replace("-", "_"), 1)):
        files.user.write_text(written)
        line = profiles.load().named("one").line()
        assert line
        typed, _ = files.started(line)
        kept = profiles.load().named("one").options
        assert {what: value for what, value in typed.items() if value is not None} == kept


def test_a_profile_is_checked_by_the_same_options_as_a_line() -> None:
    parser = start_parser("%jaxcluster start")
    taken = {action.dest for action in parser._actions}
    assert taken == {option.name for option in known().options}
    assert taken == {*known().in_profiles, "profile", "no_profile", "dry_run"}


def test_lists_of_hosts_and_of_devices_may_be_lists(files: Files) -> None:
    files.user.write_text(
        '[profile.a]\nlauncher = "ssh"\nhosts = ["h1:2",\n  "h2:2"]\nlocal-device-ids = [0, 1]\n'
        '[profile.b]\nlocal-device-ids = "0/1"\nenv = ["A=1=2"]\ntimeout = 2.5\n'
        "[profile.c]\nlocal-device-ids = [[0, 1]]\n[profile.d]\nlocal-device-ids = 3\n"
    )
    found = profiles.load()
    assert found.named("a").line() == ("--launcher ssh --local-device-ids 0,1 --hosts h1:2,h2:2")
    assert found.named("b").line() == "--env A=1=2 --timeout 2.5 --local-device-ids 0/1"
    assert found.named("c").options == {"local_device_ids": [[0, 1]]}
    assert found.named("d").options == {"local_device_ids": [3]}


def test_the_line_that_a_profile_amounts_to_is_read_back_as_the_same(files: Files) -> None:
    files.user.write_text(
        '[profile.all]\nlauncher = "slurm"\nsbatch = ["--mail-type=END", "a b"]\nnew-job = true\n'
        "env = { FLAGS = \"--a --b='c'\" }\nno-sync = true\ndetach = false\n"
    )
    line = profiles.load().named("all").line()
    assert "--no-detach" not in line
    typed, _ = files.started(line)
    assert typed["sbatch"] == ["--mail-type=END", "a b"]
    assert typed["env"] == {"FLAGS": "--a --b='c'"}
    assert typed["new_job"] is typed["no_sync"] is True


def test_what_is_a_secret_by_its_name_is_not_shown(files: Files) -> None:
    files.user.write_text('[profile.a]\nn = 2\nenv = { HF_TOKEN = "hush", KEYS = "shown" }\n')
    found = profiles.load()
    _, said = files.started("--profile a")
    for shown in (*said, found.table(), found.explained("a")):
        assert "hush" not in shown
        assert "HF_TOKEN=..." in shown
        assert "KEYS=shown" in shown
    spec = files.spec("--profile a")
    assert spec.env["HF_TOKEN"] == "hush"
    assert "hush" not in dry_run(spec)
    assert "hush" not in "".join(differences(make_spec(2), spec))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('env = { HF_TOKEN = "hush", DEBUG = true }', "DEBUG is not text in quotes"),
        ("env = { PIN = [4711] }", "PIN is not text in quotes"),
        ('env = "HF_TOKEN=hush"', 'not "HF_TOKEN=..."'),
        ('env = "hush"', 'not "..."'),
        ('env = ["MINE=hush", 1]', '"MINE=..."'),
        ('env = ["hush"]', "env must be"),
        ('inherits = { HF_TOKEN = "hush" }', '"HF_TOKEN": "..."'),
        ('platform = ["-x HF_TOKEN=hush"]', "HF_TOKEN=..."),
    ],
)
def test_an_error_names_a_variable_and_never_its_value(files: Files, text: str, named: str) -> None:
    files.user.write_text(f'default = "a"\n[profile.a]\n{text}\n')
    found = profiles.load()
    told = [files.refused("--profile a"), found.table(), check_profiles(found).detail]
    assert named in told[0]
    assert not any("hush" in one or "4711" in one for one in told)


@pytest.fixture
def mpiexec(tmp_path: Path) -> Path:
    """A program that prints Open MPI's version; tests/launchers run the real one."""
    made = tmp_path / "mpiexec"
    made.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    made.chmod(0o755)
    return made


@pytest.mark.parametrize(
    "args",
    [
        "-x HF_TOKEN=hush",
        "-x 'HF_TOKEN=hush hush'",
        '-env A=1 -x GITHUB_PAT=\\"hush hush\\"',
        "--export=ALL,MYSQL_PWD=hush",
        "--password=hush",
        "-x SSH_PASSPHRASE=hush,hush",
    ],
)
def test_a_secret_in_a_launchers_arguments_is_not_shown(
    files: Files, mpiexec: Path, args: str
) -> None:
    files.user.write_text(
        f'[profile.a]\nlauncher = "mpi"\nmpiexec = "{mpiexec}"\nmpi-args = "{args}"\n'
    )
    found = profiles.load()
    _, said = files.started("--profile a")
    spec = files.spec("--profile a --hosts h1,h2")
    compared = "\n".join(differences(make_spec(2, launcher="mpi", hosts="h1,h2"), spec))
    for shown in (*said, found.table(), found.explained("a"), dry_run(spec), compared):
        assert "hush" not in shown
        assert "=..." in shown
    assert "hush" in found.named("a").line()  # what is run


def test_nothing_in_a_file_can_hide_the_line_that_it_amounts_to(files: Files) -> None:
    files.near.write_text('[profile.a]\nn = 9\nname = "\\r\\u001b[2K\\u202e"\n"\\u001b[2K" = 1\n')
    for shown in (profiles.load().table(), files.refused("--profile a")):
        assert shown.replace("\n", "").isprintable()
    files.near.write_text('[profile.a]\nn = 9\nname = "\\r\\u001b[2K\\u202e"\n')
    _, said = files.started("--profile a")
    assert said[0].endswith(": -n 9 --name '\\r\\x1b[2K\\u202e'")
    files.near.write_text('[profile.a]\nname = ["\\u202e"]\n')
    assert "\u202e" not in files.refused("--profile a")
    odd = files.near.parent / "a\u202eb"  # where it lies is shown, too
    odd.mkdir()
    (odd / files.near.name).write_text("[profile.a]\nn = 9\n")
    shown = profiles.load(folder=str(odd)).table()
    assert "a\\u202eb/jaxcluster.toml:1" in shown and "\u202e" not in shown


def test_the_doctor_says_what_is_wrong_with_any_of_them(files: Files) -> None:
    assert check_profiles(profiles.load()) == Check("profiles", True, "none; default: none")
    files.user.write_text(f'default = "team"\n{TEAM}')
    assert check_profiles(profiles.load()).detail == "team; default: team"
    files.site.write_text("[profile.b]\nn = 0\n")
    files.near.write_text("[")
    found = check_profiles(profiles.load())
    assert found.ok is None
    assert f"{files.site}:2: n must be a whole number" in found.detail
    assert "~/project/notebooks/jaxcluster.toml:1 is not TOML" in found.detail


# ------------------------------------------------------------------------------ which is taken


def test_a_named_profile_is_taken_and_told_with_its_place_and_its_line(files: Files) -> None:
    files.user.write_text(f"\n{TEAM}")
    options, said = files.started("--profile team")
    assert said == [
        "Profile 'team' (~/.config/jaxcluster/jaxcluster.toml:2): --launcher ssh --env A=1 "
        "--hosts h1:2,h2:2"
    ]
    spec = make_spec(**options)
    assert (spec.launcher, spec.options, spec.env) == ("ssh", {"hosts": "h1:2,h2:2"}, {"A": "1"})
    assert spec.profile == "team"
    assert make_spec(profile="team") == spec  # from Python
    assert "host h1: ranks 0-1" in dry_run(spec)


def test_what_is_typed_counts_before_the_profile(files: Files) -> None:
    files.user.write_text(f"{TEAM}timeout = 300\ndetach = true\ndirect = true\nno-sync = true\n")
    line = "--profile team --timeout 60 --no-detach --no-direct --env B=2 --env A=3 --sync ."
    spec = files.spec(line)
    assert (spec.timeout_s, spec.detach) == (60.0, False)
    assert spec.env == {"A": "3", "B": "2"}
    assert spec.options == {"hosts": "h1:2,h2:2", "sync": "."}
    files.folder.joinpath("hosts").write_text("h3 slots=1\n")
    assert files.spec("--profile team --hostfile hosts --sync .").options == {
        "hostfile": "hosts",
        "sync": ".",
        "direct": True,
    }
    spec = make_spec(profile="team", timeout_s=60, detach=False, direct=False)
    assert (spec.timeout_s, spec.detach) == (60.0, False)
    assert "direct" not in spec.options


def test_with_another_launcher_the_options_of_the_first_are_left_out_and_told(files: Files) -> None:
    files.user.write_text(f"{TEAM}devices-per-process = 2\n")
    options, said = files.started("--profile team --launcher local -n 2")
    assert said[0].endswith("; without --hosts, which local does not know")
    spec = make_spec(**options)
    assert (spec.launcher, spec.options, spec.devices_per_process) == ("local", {}, 2)
    # Those that both know stay.
    assert files.spec("--profile team --launcher mpi").options == {"hosts": "h1:2,h2:2"}


def test_the_default_of_the_user_counts_before_the_sites(files: Files) -> None:
    files.site.write_text('default = "site"\n[profile.site]\nnum-processes = 5\n')
    options, said = files.started()
    assert said == [f"Profile 'site' (the default, {files.site}:2): -n 5"]
    assert make_spec(**options).num_processes == 5
    files.user.write_text('default = "mine"\n[profile.mine]\nnum-processes = 3\n')
    assert files.spec().num_processes == 3
    assert files.spec("-n 4").num_processes == 4
    assert files.spec("--profile site").num_processes == 5
    files.user.write_text('default = ""\n')  # the user wants none
    assert files.spec("-n 2").profile == ""


def test_a_default_profile_makes_auto_the_launcher(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.site.write_text('default = "here"\n[profile.here]\nlauncher = "auto"\npython = "py"\n')
    found = detection.Inside("a job", "mpi", {"hosts": "h1:2,h2:2"})
    monkeypatch.setattr(detection, "find", lambda: found)
    spec = files.spec()
    assert (spec.launcher, spec.profile) == ("mpi", "here")
    assert spec.options == {"hosts": "h1:2,h2:2", "python": "py"}
    assert files.spec("--launcher local -n 2").launcher == "local"


def test_no_profile_takes_none(files: Files) -> None:
    files.user.write_text('default = "mine"\n[profile.mine]\nnum-processes = 3\n')
    assert files.started("--no-profile")[1] == []
    assert files.spec("--no-profile -n 2").profile == ""
    assert "can't be used together" in files.refused("--no-profile --profile mine")


def test_python_takes_no_default(files: Files) -> None:
    files.user.write_text('default = "mine"\n[profile.mine]\nnum-processes = 3\n')
    assert make_spec(2).profile == ""


def test_a_start_without_profiles_says_nothing(files: Files) -> None:
    assert files.started("-n 2")[1] == []
    files.user.write_text(TEAM)
    assert files.started("-n 2")[1] == []


def test_the_options_of_a_cluster_are_compared_and_not_where_they_stand(files: Files) -> None:
    files.user.write_text("[profile.two]\nn = 2\n")
    assert differences(files.spec("--profile two"), files.spec("-n 2")) == []


def test_the_doctor_takes_a_profile_of_hosts(files: Files) -> None:
    files.user.write_text(TEAM)
    parsed = read_doctor("%jaxcluster doctor", "--profile team")
    assert parsed is not None
    assert make_spec(**start_options(parsed, lambda line: None)).launcher == "ssh"


# ------------------------------------------------------------------------------ the folder's file


def test_a_file_that_came_with_a_notebook_has_no_say_unless_it_is_named(files: Files) -> None:
    files.near.write_text(
        'default = "theirs"\n[profile.theirs]\nn = 9\n[profile.team]\nlauncher = "mpi"\n'
    )
    options, said = files.started("-n 2")
    assert options["profile"] is None
    assert said == [
        "Note: ~/project/notebooks/jaxcluster.toml:1 proposes a profile. To use it: "
        "%jaxcluster start --profile theirs"
    ]
    assert files.started("--profile theirs")[1] == [
        "Profile 'theirs' (~/project/notebooks/jaxcluster.toml:2): -n 9"
    ]
    assert "*" not in profiles.load().table()
    # Nor does it take the place of one that the user has.
    files.user.write_text(f'default = "team"\n{TEAM}')
    for line in ("", "--profile team"):
        assert files.spec(line).launcher == "ssh"
    assert "hidden: a file above has one with that name" in profiles.load().table()


def test_a_default_is_not_looked_for_in_the_folders_file(files: Files) -> None:
    files.near.write_text("[profile.gpu]\nn = 9\n")
    files.user.write_text('\ndefault = "gpu"\n')
    told = files.refused()
    assert told.startswith(
        "~/.config/jaxcluster/jaxcluster.toml:2: the default profile is 'gpu', which does "
        "not exist."
    )
    assert "--no-profile" in told
    assert profiles.load().default_name() == ""


def test_what_the_user_has_inherits_nothing_from_the_folder(files: Files) -> None:
    files.near.write_text('[profile.base]\nn = 9\n[profile.own]\ninherits = "team"\nn = 1\n')
    files.user.write_text(f'{TEAM}[profile.mine]\ninherits = "base"\n')
    assert "it inherits 'base', which does not exist" in files.refused("--profile mine")
    assert profiles.load().named("own").line().startswith("-n 1 --launcher ssh")


# ------------------------------------------------------------------------------ inheriting


def test_a_profile_inherits_what_it_does_not_say_itself(files: Files) -> None:
    files.site.write_text(
        '[profile.base]\nlauncher = "slurm"\npartition = "gpu"\nenv = { A = "1", B = "2" }\n'
        "detach = true\n"
    )
    files.user.write_text(
        '[profile.big]\ninherits = "base"\nnodes = 8\nenv = { B = "3" }\ndetach = false\n'
        '[profile.base]\ninherits = "base"\naccount = "mine"\n'
    )
    found = profiles.load()
    assert found.named("big").line() == (
        "--launcher slurm --env A=1 --env B=3 --nodes 8 --partition gpu --account mine"
    )
    assert found.explained("big").splitlines() == [
        "Profile 'big', ~/.config/jaxcluster/jaxcluster.toml:1, inherits 'base' "
        f"(~/.config/jaxcluster/jaxcluster.toml:6), 'base' ({files.site}:1)",
        "%jaxcluster start --launcher slurm --env A=1 --env B=3 --nodes 8 --partition gpu "
        "--account mine",
    ]


def test_circles_are_told(files: Files) -> None:
    files.user.write_text('[profile.a]\ninherits = "b"\n[profile.b]\ninherits = "a"\n')
    assert "profiles inherit each other: a -> b -> a" in files.refused("--profile a")
    files.user.write_text('[profile.a]\ninherits = "a"\n')
    assert "it inherits 'a', which does not exist" in files.refused("--profile a")


# ------------------------------------------------------------------------------ bad input

HERE = "~/.config/jaxcluster/jaxcluster.toml"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('hots = "h1"', 3, "%jaxcluster start has no option 'hots' (did you mean hosts?)"),
        ("zzzz = 1", 3, "%jaxcluster start has no option 'zzzz'."),
        ("dry-run = true", 3, "dry-run can only be typed when you start"),
        ('profile = "x"', 3, "profile can only be typed when you start"),
        ('n = "four"', 3, 'n must be a whole number from 1 up, not "four"'),
        ("n = 0", 3, "n must be a whole number from 1 up, not 0"),
        ("n = true", 3, "n must be a whole number from 1 up, not true"),
        ("num-processes = 2.0", 3, "num-processes must be a whole number from 1 up, not 2.0"),
        ("n = 2\nnum_processes = 3", 4, "num_processes repeats num-processes"),
        ("timeout = -1", 3, "timeout must be more than 0 seconds, not -1"),
        ("timeout = inf", 3, "timeout must be more than 0 seconds, not Infinity"),
        ('timeout = "60"', 3, 'timeout must be more than 0 seconds, not "60"'),
        ('detach = "yes"', 3, 'detach must be true or false, not "yes"'),
        ('env = "A=1"', 3, 'env must be a table of variables: { NAME = "VALUE" }, not "A=..."'),
        ("env = { A = [1] }", 3, 'env must be a table of variables: { NAME = "VALUE" }'),
        ('env = ["A"]', 3, "env must be a table of variables"),
        ("name = [1]", 3, "name must be text in quotes, not [1]"),
        ("platform = 02:00:00", 3, "platform must be text in quotes, not 02:00:00"),
        ('platform = "abacus"', 3, "There is no platform 'abacus': it is cpu, cuda, rocm or tpu."),
        ('local-device-ids = ["a"]', 3, "local-device-ids must be a list of numbers, [0, 1]"),
        ("local-device-ids = []", 3, "local-device-ids must be a list of numbers, [0, 1]"),
        ("inherits = 3", 3, "inherits must be the name of a profile, not 3"),
        ('inherits = "oter"\n[profile.other]', 3, "which does not exist (did you mean other?)"),
        ('launcher = "shh"', 3, "There is no launcher 'shh' (did you mean ssh?)."),
        (
            'launcher = "ssh"\n\npartition = "gpu"',
            5,
            "--launcher ssh does not know --partition; it is one of slurm.",
        ),
        ('launcher = "slurm"\nnodes = "2"', 4, 'nodes must be a whole number from 1 up, not "2"'),
        ('launcher = "ssh"\nhosts = [[]]', 4, "hosts must be text in quotes, not [[]]"),
        ('env = """\n"""', 3, "env must be a table of variables"),
    ],
)
def test_what_no_start_takes_is_told_with_its_line(
    files: Files, text: str, line: int, said: str
) -> None:
    files.user.write_text(f"# mine\n[profile.team]\n{text}\n")
    told = files.refused("--profile team")
    assert told.startswith(f"Profile 'team' can't be used: {HERE}:{line}: ")
    assert said in told
    assert "\n" in told  # what to do next
    assert said.partition(";")[0].rstrip(".") in profiles.load().table()
    files.user.write_text(f"{files.user.read_text()}\n[profile.good]\nn = 2\n")
    assert files.spec("--profile good").num_processes == 2  # that one is not in the way of others
    assert files.started("-n 2")[1] == []


def test_a_value_that_only_the_launcher_can_judge_is_told_with_its_place(files: Files) -> None:
    files.user.write_text('[profile.lab]\nlauncher = "ssh"\n\nport = 99999\nhosts = "h1"\n')
    told = files.refused("--profile lab")
    assert "--port: 99999 is not a port" in told
    assert f"Profile 'lab' ({HERE}:1) has: --launcher ssh --hosts h1 --port 99999" in told
    files.user.write_text('[profile.lab]\nlauncher = "ssh"\nuser = "me"\n')
    assert "--launcher ssh needs hosts." in files.refused("--profile lab")
    files.user.write_text(
        '[profile.lab]\nlauncher = "ssh"\nport = 99999\nhosts = "h1"\nenv = { HF_TOKEN = "hush" }\n'
    )
    told = files.refused("--profile lab")
    assert "HF_TOKEN=..." in told and "hush" not in told
    files.user.write_text('[profile.lab]\nlauncher = "ssh"\nuser = "me"\n')
    assert files.spec("--profile lab --hosts h1").options == {"hosts": "h1", "user": "me"}


def test_a_profile_that_is_not_there_is_told_with_those_that_are(files: Files) -> None:
    assert files.refused("--profile team") == (
        "There is no profile 'team'.\n%jaxcluster profiles shows where profiles are defined."
    )
    files.user.write_text(TEAM)
    assert files.refused("--profile teem") == (
        "There is no profile 'teem' (did you mean team?).\n"
        "There are: team. %jaxcluster profiles shows what each sets."
    )
    files.site.write_text("[profile.big\n")
    assert f"{files.site}:1 is not TOML" in files.refused("--profile big")
    with pytest.raises(UsageError, match="did you mean team"):
        make_spec(profile="teem")


SYNTAX = [
    ("[profile.a\n", f"{HERE}:1 is not TOML: "),
    ('[profile.a]\nhosts = "h1\n', f"{HERE}:2 is not TOML: "),
    ("[profile.a]\n\nn = 1\nn = 2\n", f"{HERE}:4 is not TOML: Cannot overwrite a value"),
    ("[profile.a]\nn = [1,\n", f"{HERE}:2 is not TOML: "),
    ("[profile.a]\ntime = 2:00:00\n", f"{HERE}:2 is not TOML: "),
    ("a = " + "[" * 9999, f"{HERE} is not TOML: "),
    ("[profiles.a]\nn = 1\n", f"{HERE}:1: there is no 'profiles' (did you mean profile?)"),
    ("\n[a]\nn = 1\n", f"{HERE}:2: there is no 'a'; it holds tables [profile.NAME]"),
    ("[profile]\nn = 1\n", f"{HERE}:2: 'n' has no table: write [profile.NAME] above"),
    ("profile = 1\n", f"{HERE}:1: profiles are tables: [profile.NAME]"),
    ("default = 1\n", f"{HERE}:1: default must be the name of a profile"),
    ('[profile."a b"]\nn = 1\n', f"{HERE}:1: 'a b' is not a name for a profile"),
    ("[[profile]]\nn = 1\n", f"{HERE}:1: profiles are tables"),
]


@pytest.mark.parametrize(("text", "said"), SYNTAX, ids=[text[:12] for text, _ in SYNTAX])
def test_a_file_that_is_wrong_is_told_with_its_line(files: Files, text: str, said: str) -> None:
    files.user.write_text(text)
    assert files.refused().startswith(said)  # it may have had a default
    assert files.refused().endswith("%jaxcluster start --no-profile starts without one.")
    assert said in files.refused("--profile other")
    assert said in profiles.load().table()
    assert files.spec("--no-profile -n 2").num_processes == 2
    # That of the site, or of a folder, is nobody's business who does not need it.
    for other in (files.site, files.near):
        files.user.rename(other)
        _, notes = files.started("-n 2")
        assert len(notes) == 1
        assert notes[0].startswith("Note: ")
        assert notes[0].endswith("this start does not need it.")
        assert said.removeprefix(HERE) in notes[0]
        other.rename(files.user)


BAD: list[tuple[str, Callable[[Path], object]]] = [
    ("is a folder, and should be a file", Path.mkdir),
    ("is not a regular file", os.mkfifo),
    ("is not UTF-8 text (line 2)", lambda path: path.write_bytes(b"\n# \xff\n")),
    (
        "has more than 1 MiB: that is not a file of profiles",
        lambda path: path.write_text("#" * (MOST_BYTES + 1)),
    ),
    ("can't be read: Too many levels of symbolic links", lambda path: path.symlink_to(path.name)),
]


@pytest.mark.parametrize(("said", "make"), BAD, ids=[said for said, _ in BAD])
def test_what_is_no_file_is_told(files: Files, said: str, make: Callable[[Path], object]) -> None:
    make(files.user)
    assert files.refused().startswith(f"{HERE} {said}")
    files.user.rename(files.site)
    if said.startswith("can't"):
        files.site.unlink()
        make(files.site)
    _, notes = files.started("-n 2")
    assert notes == [f"Note: {files.site} {said}; this start does not need it."]


def test_a_file_that_may_not_be_read_is_told(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.user.write_text(TEAM)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # root may read all
    assert files.refused() == (
        f"{HERE} can't be read: Permission denied.\n"
        "It may have a default profile. %jaxcluster start --no-profile starts without one."
    )


def test_a_file_of_windows_and_a_byte_order_mark_are_read(files: Files) -> None:
    files.user.write_bytes(b"\xef\xbb\xbf" + f"\n{TEAM}".replace("\n", "\r\n").encode())
    assert profiles.load().named("team").place == f"{HERE}:2"
    files.user.unlink()
    files.user.symlink_to(files.user.parent / "gone")  # a link that leads nowhere
    assert profiles.load().names() == []


def test_a_folder_that_was_removed_has_no_profiles(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.user.write_text(TEAM)
    monkeypatch.setattr(os, "getcwd", lambda: (_ for _ in ()).throw(FileNotFoundError()))
    assert profiles.load().names() == ["team"]


# ------------------------------------------------------------------------------ lines


def test_each_key_has_the_line_on_which_it_begins(files: Files) -> None:
    text = (
        '# a\n\ndefault = "a" # b\nprofile.b = { n = 3 }\n[ profile . "a" ] # [x]\n'
        "hosts = [ # first\n'[profile.z]',\n\n 'n = 2',\n]\n"
        'name = """\n[profile.y]\nn = 1\n"""\nenv.A = "1"\nenv.B = "2"\n\n[profile.a.x]\nn = 1\n'
    )
    files.user.write_text(text)
    found = read("user", files.user)
    assert found is not None
    assert {".".join(keys): line for keys, line in found.lines.items()} == {
        "default": 3,
        "profile": 4,
        "profile.b": 4,
        "profile.b.n": 4,
        "profile.a": 5,
        "profile.a.hosts": 6,
        "profile.a.name": 11,
        "profile.a.env": 15,
        "profile.a.env.A": 15,
        "profile.a.env.B": 16,
        "profile.a.x": 18,
        "profile.a.x.n": 19,
    }


def test_a_file_that_costs_much_is_read_all_the_same(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One statement of many lines: each of them would be parsed as often as there are lines."""
    parsed: list[int] = []
    loads = tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda text: (parsed.append(len(text)), loads(text))[1])
    many = "hosts = [\n" + "'h1',\n" * 20_000 + "]\n"
    files.near.write_text(f"[profile.early]\nn = 2\n[profile.a]\n{many}[profile.late]\nn = 3\n")
    assert files.started("-n 2")[1] == []
    assert parsed == [len(files.near.read_text())]  # where keys stand was not asked
    assert files.started("--profile late")[1][0].startswith("Profile 'late' (~/project")
    assert sum(parsed) < 3 * MOST_BYTES
    assert profiles.load().named("early").place.endswith("toml:1")
    files.near.write_text(f"[profile.a]\nn = 2\n{'x.' * 900}x = 1\n")
    assert "has no option" in files.refused("--profile a")


# ------------------------------------------------------------------------------ the form


def test_the_form_is_offered_each_profile_with_what_it_would_type(files: Files) -> None:
    files.user.write_text(f'default = "team"\n{TEAM}detach = true\n[profile.bad]\nn = "x"\n')
    auto = AutoMode()
    offered = operations.Operations(auto, Model(auto)).profiles()
    assert [one.name for one in offered] == ["bad", "team"]
    bad, team = offered
    assert bad.problem.startswith("Profile 'bad' can't be used: ")
    assert team.options == [
        ["--launcher", "ssh"],
        ["--env", "A=1"],
        ["--detach"],
        ["--hosts", "h1:2,h2:2"],
    ]
    assert (team.is_default, team.place, team.problem) == (True, f"{HERE}:2", "")
    line = shlex.join(word for words in team.options for word in words)
    given = {what: value for what, value in files.started(line)[0].items() if value is not None}
    assert {**given, "profile": None} == {
        "launcher": "ssh", "env": {"A": "1"}, "detach": True, "hosts": "h1:2,h2:2",
        "profile": None,
    }  # fmt: skip


# ------------------------------------------------------------------------------ completion


@pytest.mark.parametrize(
    ("text", "token", "completed"),
    [
        ("%jaxcluster start --profile |", "", ["team", "tiny"]),
        ("  jaxcluster start -n 4 --profile te|", "te", ["team"]),
        ("%jaxcluster start --profile=ti|", "--profile=ti", ["--profile=tiny"]),
        ("%jaxcluster start --profile=ti|", "ti", ["tiny"]),
        ("%jaxcluster profiles t|", "t", ["team", "tiny"]),
        ("%jaxcluster doctor --profile x|", "x", []),
    ],
)
def test_tab_completes_the_name_of_a_profile(
    files: Files, text: str, token: str, completed: list[str]
) -> None:
    files.user.write_text(f"{TEAM}[profile.tiny]\nn = 1\n")

    class Context:
        full_text = text_until_cursor = text.removesuffix("|")

    context = Context()
    context.token = token  # type: ignore[attr-defined]
    answer = Completion(None, lambda: False).complete(context)
    assert [one.text for one in answer["completions"]] == completed
    assert answer["suppress"] is True


@pytest.mark.parametrize(
    "text", ["%jaxcluster start --profile team ", "%jaxcluster start --name t", "x --profile t"]
)
def test_elsewhere_no_profile_is_offered(files: Files, text: str) -> None:
    files.user.write_text(TEAM)

    class Context:
        full_text = text_until_cursor = text
        token = ""

    assert Completion(None, lambda: False).complete(Context())["suppress"] is False
