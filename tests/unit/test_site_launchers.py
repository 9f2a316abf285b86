"""Launchers that other packages add by entry points, and those of them that can't be used."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import sitelauncher
import startform

from jaxcluster.cluster import make_spec
from jaxcluster.errors import UsageError
from jaxcluster.launchers.base import AgentOptions, describe
from jaxcluster.options import known
from jaxcluster.options.arguments import Parser
from jaxcluster.options.known import GROUP

OURS = ["ssh", "slurm", "mpi", "tpu", "kubernetes", "ipp"]


class Site:
    """A folder in ``sys.path`` to which packages are added."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, package: str, source: str, **launchers: str) -> None:
        sitelauncher.install(self.folder, package, source, **launchers)
        importlib.invalidate_caches()
        known.known.cache_clear()

    def started(self, line: str) -> object:
        return sitelauncher.launched(line)[0]

    def refused(self, line: str) -> str:
        with pytest.raises(UsageError) as caught:
            self.started(line)
        return str(caught.value)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if name.endswith("_launcher"):
            del sys.modules[name]
    known.known.cache_clear()


@pytest.fixture
def rack(site: Site) -> Site:
    site.install("rack", sitelauncher.documented(), rack="Rack")
    return site


def test_ours_are_found_by_their_entry_points_and_listed_in_our_order() -> None:
    points = {point.name: point for point in entry_points(group=GROUP)}
    for names in (sorted(OURS), sorted(OURS, reverse=True)):  # a build sorts them
        assert list(known.collect([points[name] for name in names]).launchers) == OURS
    assert known.known().names[:2] == ("local", "auto")
    assert [name.partition(":")[0] for name in known.known().names[2:]][: len(OURS)] == OURS
    assert known.known().broken == {}


def test_a_site_s_launcher_is_one_file_of_forty_lines(rack: Site) -> None:
    assert len(sitelauncher.documented().splitlines()) <= 45
    made = rack.started("--launcher rack --rack b --machines 2 -n 4")
    assert str(made) == "Rack(num_processes=4, rack='b', machines=2)"
    plan = made.render(AgentOptions("main", "KEY", "python"), "/f")  # type: ignore[attr-defined]
    assert "rack-run b 2 python -P -m jaxcluster.hosts.agent" in describe(plan)
    assert "host" not in known.known().broken


def test_all_that_is_made_of_options_knows_a_site_s(rack: Site) -> None:
    told = Parser("%jaxcluster start").format_help("rack")
    assert "--rack NAME" in told and "which rack (rack)" in told
    assert rack.refused("--launcher rack --rack ''").startswith("--rack has no value.")
    assert rack.refused("--launcher rack --machines 0").startswith("--machines must be a whole")
    said = rack.refused("--launcher rack --hosts h1")
    assert said.startswith("--launcher rack does not know --hosts, an option of ssh, mpi and tpu.")
    assert "It takes: --rack --machines --python --lease." in said
    assert "ipp:NAME, rack." in rack.refused("--launcher shh")
    spec = make_spec(launcher="rack", rack="b", machines=2)
    assert (spec.launcher, spec.options) == ("rack", {"rack": "b", "machines": "2"})
    assert known.known().line({"launcher": spec.launcher, **spec.options}) == (
        "--launcher rack --rack b --machines 2"
    )
    assert "rack" not in startform.text()  # the page is built before there is one


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_thing", "raises ModuleNotFoundError: No module named 'no_such_thing'"),
        ("raise SystemExit(3)", "raises SystemExit: 3"),
        ("Other = 1", "raises AttributeError: module 'bad_launcher' has no attribute 'Bad'"),
        ("class Bad: pass", "raises AttributeError: type object 'Bad' has no attribute 'options'"),
    ],
)
def test_a_launcher_that_cannot_be_used_is_named_with_its_package_and_all_others_work(
    rack: Site, source: str, why: str
) -> None:
    rack.install("bad", source, bad="Bad")
    told = rack.refused("--launcher bad --queue x -n 2")  # whatever its options are
    message, hint = told.split("\n")
    assert message.startswith("The launcher 'bad' of the package bad can't be used: ")
    assert why in message
    assert "pip install -U bad" in hint and "pip uninstall bad" in hint
    with pytest.raises(UsageError, match="'bad' of the package bad can't be used"):
        make_spec(launcher="bad")
    assert rack.started("--launcher rack --rack b") is not None
    assert rack.started("--launcher ssh --hosts h1") is not None
    assert "bad" not in known.known().names


def test_no_package_can_take_the_place_of_one_of_ours(site: Site) -> None:
    source = sitelauncher.documented().replace('name = "rack"', 'name = "ssh"')
    site.install("evil", source, ssh="Rack", local="Rack")
    assert known.known().launchers["ssh"].__module__ == "jaxcluster.launchers.ssh"
    assert type(site.started("--launcher ssh --hosts h1")).__name__ == "SSH"
    assert site.started("--launcher local") is None
