"""What a project shows the world: metadata, workflows, forms, and that all of it is true."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import jaxcluster

pytestmark = pytest.mark.any_jax

TOP = Path(__file__).parents[2]
HOME = "https://github.com/jaxcluster/jaxcluster"
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((TOP / ".github" / "workflows").glob("*.yml"))
TESTS = TOP / ".github" / "workflows" / "tests.yml"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in read(workflow)["jobs"].values():
        yield from job["steps"]


def paths_in(command: str) -> list[str]:
    """The files and folders of this repository that a command names."""
    words = re.findall(
        r"(?<![\w/.-])(?:tests|docs|\.ci|\.github|labextension)(?:/[^\s'\"]*)?", command
    )
    return [word for word in words if "_build" not in word]


# --------------------------------------------------------------------------- metadata


def test_one_version_and_one_address_everywhere() -> None:
    package = json.loads((TOP / "labextension" / "package.json").read_text())
    citation = read(TOP / "CITATION.cff")
    recipe = read(TOP / ".ci" / "conda" / "recipe.yaml")
    versions = {package["version"], citation["version"], recipe["context"]["version"]}
    assert versions == {jaxcluster.__version__}
    assert PROJECT["urls"]["Homepage"] == PROJECT["urls"]["Source"] == HOME
    assert package["homepage"] == citation["repository-code"] == HOME
    assert package["repository"]["url"] == f"{HOME}.git"
    assert package["bugs"]["url"] == PROJECT["urls"]["Issues"] == f"{HOME}/issues"
    assert recipe["about"]["homepage"] == HOME
    [author] = PROJECT["authors"]
    assert author == package["author"] == {"name": "jaxcluster developers"}
    assert citation["authors"] == [author]
    assert "jupyterlab-extension" in package["keywords"]


def test_the_changelog_has_a_short_dated_section_for_this_version() -> None:
    text = (TOP / "CHANGELOG.md").read_text()
    version = re.escape(jaxcluster.__version__)
    found = re.search(
        rf"^## \[{version}\] - (\d{{4}}-\d\d-\d\d)\n(.*?)(?=^## |\Z)", text, re.M | re.S
    )
    assert found, "no section"
    assert found[1] == str(read(TOP / "CITATION.cff")["date-released"])
    shown = re.sub(r"<details>.*?</details>", "", found[2], flags=re.S)
    assert 5 < len(shown.splitlines()) <= 40


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    recipe = read(TOP / ".ci" / "conda" / "recipe.yaml")
    spaced = {re.sub(r"(?=>=)", " ", one, count=1) for one in PROJECT["dependencies"]}
    run = set(recipe["requirements"]["run"])
    assert run - {"__linux", f"python {PROJECT['requires-python']}"} == spaced
    build = tomllib.loads((TOP / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {re.sub(r"(?=>=)", " ", one, count=1) for one in build} <= set(
        recipe["requirements"]["host"]
    )
    [entry] = recipe["build"]["python"]["entry_points"]
    assert entry == f"jaxcluster = {PROJECT['scripts']['jaxcluster']}"


# --------------------------------------------------------------------------- workflows


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_file_that_a_workflow_names_is_there(workflow: Path) -> None:
    for step in steps(workflow):
        for path in paths_in(re.sub(r"\$\{\{.*?\}\}", "?", step.get("run", ""))):
            assert list(TOP.glob(path.rstrip("/"))), path


def test_every_test_is_in_a_job_and_each_python_that_is_declared() -> None:
    """But those that need a GPU, which no hosted runner has."""
    jobs = read(TESTS)["jobs"]
    run = " ".join(step.get("run", "") for step in steps(TESTS))
    options = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert [folder for folder in options["testpaths"] if folder not in run] == ["tests/gpu"]
    folder = TOP / "tests" / "ranks"
    parts = jobs["ranks"]["strategy"]["matrix"]["part"]
    taken = [path for part in parts for path in folder.glob(f"test_{part}*.py")]
    assert sorted(taken) == sorted(folder.glob("test_*.py"))
    assert jobs["unit"]["strategy"]["matrix"]["python"] == declared_pythons()


def declared_pythons() -> list[str]:
    prefix = "Programming Language :: Python :: "
    return [c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix + "3.")]


@pytest.mark.parametrize("script", ["notebooks/quickstart.sh", "tests/run.sh"])
def test_the_commands_of_the_readme_look_for_each_python_that_is_declared(script: str) -> None:
    found = re.search(r"candidates=\((.*?)\)", (TOP / script).read_text())
    assert found
    newest_first = [f"python{version}" for version in reversed(declared_pythons())]
    assert found[1].split() == ["python3", *newest_first]


def test_only_a_tag_publishes_and_only_what_was_tried() -> None:
    jobs = read(TOP / ".github" / "workflows" / "release.yml")["jobs"]
    publish = jobs["publish"]
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert (publish["needs"], jobs["try"]["needs"]) == ("try", "build")
    assert publish["permissions"] == {"id-token": "write"}
    assert "password" not in json.dumps(publish) and "secrets" not in json.dumps(jobs)
