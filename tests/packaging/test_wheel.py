"""What wheels and source distributions carry, with Node and without."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "jaxcluster" / "labextension"
SIDEBAR = ROOT / "jaxcluster" / "static" / "sidebar"  # the same build makes it
HERE = "share/jupyter/labextensions/jaxcluster-labextension/"

needs_build = pytest.mark.skipif(
    not (BUILT / "package.json").exists() or not SIDEBAR.exists(),
    reason="the Lab extension is not built",
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would give, without anything built."""
    copy = tmp_path_factory.mktemp("checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        pytest.skip("this is not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture
def source(checkout: Path, tmp_path: Path) -> Path:
    """The same with what a build with Node has made."""
    copy = tmp_path / "source"
    shutil.copytree(checkout, copy)
    for folder in (BUILT, SIDEBAR):
        shutil.copytree(folder, copy / folder.relative_to(ROOT))
    return copy


@pytest.fixture
def nodeless(tmp_path: Path) -> str:
    """A PATH on which there is no Node."""
    (tmp_path / "bin").mkdir()
    return str(tmp_path / "bin")


def build(source: Path, target: str, out: Path, js: str, path: str | None = None) -> Path:
    """Run the build backend; returns what it made."""
    done = run_build(source, target, out, js, path)
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = out.iterdir()
    return made


def run_build(
    source: Path, target: str, out: Path, js: str, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"JAXCLUSTER_JS": js}
    if path is not None:
        env["PATH"] = path
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)],
        check=False,
        cwd=source,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
    )


def shared(wheel: Path) -> list[str]:
    """What of a wheel goes to share/jupyter."""
    names = zipfile.ZipFile(wheel).namelist()
    return [name.split(".data/data/")[1] for name in names if ".data/data/" in name]


def assert_carries_the_extension(wheel: Path) -> None:
    names = shared(wheel)
    assert all(name.startswith(HERE) for name in names)
    inside = [name.removeprefix(HERE) for name in names]
    assert {"package.json", "install.json"} <= set(inside)
    assert "schemas/jaxcluster-labextension/plugin.json" in inside
    assert any(re.fullmatch(r"static/remoteEntry\.\w+\.js", name) for name in inside)
    # Once, and not in the package as well.
    everything = zipfile.ZipFile(wheel).namelist()
    assert max(Counter(everything).values()) == 1
    assert {f"jaxcluster/static/sidebar/widget.{kind}" for kind in ("js", "css")} <= {*everything}
    assert not [n for n in everything if n.startswith(("jaxcluster/labextension", "labextension"))]


@needs_build
def test_a_wheel_in_a_new_environment_without_node_brings_the_extension(
    source: Path, tmp_path: Path, nodeless: str
) -> None:
    wheel = build(source, "wheel", tmp_path / "out", "skip")
    assert_carries_the_extension(wheel)
    # What it needs is borrowed from the tests' environment.
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    [site] = venv.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text("\n".join(p for p in sys.path if "site-packages" in p))
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--ignore-installed", wheel],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [python, "-m", "jupyterlab.labextensions", "list"],
        check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("JUPYTER")}
        | {"PATH": nodeless, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    said = re.sub(r"\x1b\[\d+m", "", listed.stdout + listed.stderr)
    place = re.search(
        r"^(\S.*/share/jupyter/labextensions)\n(?:\s+.*\n)*?\s+jaxcluster-lab", said, re.M
    )
    assert place and place[1].startswith(str(venv)), said
    assert re.search(r"jaxcluster-labextension v\S+ enabled OK \(python, jaxcluster\)", said), said


def test_without_node_all_but_the_extension_is_installed(
    checkout: Path, tmp_path: Path, nodeless: str
) -> None:
    done = run_build(checkout, "wheel", tmp_path / "out", "auto", nodeless)
    assert done.returncode == 0, done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "there is no Node here" in said
    assert "all else is there" in said
    [wheel] = (tmp_path / "out").iterdir()
    assert shared(wheel) == []
    assert "jaxcluster/notebook/magics.py" in zipfile.ZipFile(wheel).namelist()
    done = run_build(checkout, "wheel", tmp_path / "out", "require", nodeless)  # a release's
    assert "JAXCLUSTER_JS=require, but there is no Node here" in done.stderr
    assert done.returncode != 0


@needs_build
def test_the_source_distribution_is_complete_and_needs_no_node(
    source: Path, tmp_path: Path, nodeless: str
) -> None:
    of_build = ("node_modules", "labextension/lib", "labextension/build")  # by a build with Node
    for folder in (source / "labextension" / Path(name).name for name in of_build):
        folder.mkdir()
        (folder / "left.js").touch()
    sdist = build(source, "sdist", tmp_path / "sdist", "skip")
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        # Python 3.11.2, Debian's, has no filters; from 3.12 a missing one is a warning.
        how = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(tmp_path / "unpacked", **how)
    wanted = {"hatch_build.py", "labextension/.npmrc", "labextension/package-lock.json"}
    wanted |= {"labextension/src/index.ts", "labextension/schema/plugin.json", "LICENSE"}
    assert wanted <= names
    assert not [name for name in names if "left.js" in name]
    [unpacked] = (tmp_path / "unpacked").iterdir()
    os.utime(unpacked / "jaxcluster" / "labextension" / "package.json", (1, 1))  # times are lost
    from_sdist = build(unpacked, "wheel", tmp_path / "a", "require", nodeless)
    assert_carries_the_extension(from_sdist)
    from_source = build(source, "wheel", tmp_path / "b", "skip")
    inside = [sorted(zipfile.ZipFile(w).namelist()) for w in (from_sdist, from_source)]
    assert inside[0] == inside[1]


@pytest.mark.skipif(
    not os.environ.get("JAXCLUSTER_TEST_BUILD") or shutil.which("npm") is None,
    reason="installs all node modules; JAXCLUSTER_TEST_BUILD=1 runs it",
)
@pytest.mark.timeout(600)
def test_with_node_a_clone_builds_the_extension(checkout: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    wheel = build(checkout, "wheel", tmp_path / "out", "require", path)
    assert_carries_the_extension(wheel)


# --------------------------------------------------------------------------- the files themselves
