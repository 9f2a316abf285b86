"""What the doctor says of made-up hosts, and that it gets through this machine."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import jaxcluster
from jaxcluster.errors import LaunchError
from jaxcluster.hosts.agent import report
from jaxcluster.hosts.doctor import (
    Row,
    check_lab_extension,
    check_private_names,
    judge,
    judge_versions,
    look,
    render,
    run_checks,
)
from jaxcluster.hosts.fleet import Host


def facts(**changes: Any) -> report.HostFacts:
    said = report.HostFacts(
        versions={"python": "3.11.7", "jax": "0.10.2"},
        address="10.0.0.1",
        cpus=8,
        free_nbytes=3 << 30,
        shm_free_nbytes=1 << 30,
    )
    return replace(said, **changes)


def rows(*hosts: report.HostFacts | None) -> dict[str, Row]:
    return {row.name: row for row in judge(hosts)}


def test_each_failing_line_has_its_fix_below() -> None:
    found = [
        Row("Python", ("3.11.7",), fix="not shown"),
        Row("memory", ("1 MB free",), None, "more of it"),
        Row("jax", ("is not installed",), False, "pip install jax"),
    ]
    assert render(found) == (
        "✓  Python  3.11.7\n"
        "!  memory  1 MB free\n"
        "   fix: more of it\n"
        "✗  jax     is not installed\n"
        "   fix: pip install jax"
    )
    shown = render([Row("jax", ("1", "2"), False, "fix it"), Row("x", ("", "y"))], ["h1", "h2"])
    assert shown == "        h1  h2\n✗  jax  1   2\n   fix: fix it\n✓  x        y"


# --------------------------------------------------------------------------- each host


def test_what_differs_or_is_short_is_marked() -> None:
    other = {"python": "3.11.9", "jax": "0.12.0"}
    found = rows(facts(), None, facts(versions=other, free_nbytes=1 << 20, shm_free_nbytes=None))
    assert found["python"].ok is True  # the patch level may differ
    assert found["jax"].ok is False
    assert found["jax"].cells == ("0.10.2", "", "0.12.0")
    assert "--python PATH" in found["jax"].fix
    assert found["free memory"].ok is None and found["/dev/shm"].ok is None
    assert found["/dev/shm"].cells[2] == "not known"


def test_gpus_that_jax_can_not_use_say_what_to_install() -> None:
    idle = rows(facts(gpus=["0", "1"], gpu_platform="cuda"))["devices"]
    assert idle.ok is None and 'pip install "jax[cuda12]"' in idle.fix
    assert rows(facts(gpus=["0"], gpu_plugin=True))["devices"].cells == ("1 GPU, 8 CPU cores",)
    assert rows(facts(tpu_chips=4, cpus=96))["devices"].cells == ("4 TPU chips, 96 CPU cores",)


@pytest.mark.parametrize(
    ("name", "version", "ok", "fix"),
    [
        ("python", "3.15.0", True, ""),
        ("ipyparallel", "", False, 'pip install -U "ipyparallel>=0"'),
        ("jax", "0.9.0.1", False, 'pip install -U "jax>=0.9.1"'),
        ("jax", "0.9.1", True, ""),
        ("jax", "0.12.7", True, ""),
        ("jax", "0.13.0", None, 'if it fails: pip install "jax>=0.9.1,<0.13"'),
    ],
)
def test_a_version_that_does_not_work_or_was_not_tried_says_what_to_install(
    name: str, version: str, ok: bool | None, fix: str
) -> None:
    row = judge_versions(name, [version, None, version])
    assert row.ok is ok
    assert fix in row.fix and row.cells == (version or "none", "", version or "none")


class Place(SimpleNamespace):
    """Stands for a host, which answers with what ``said`` has of the question."""

    condition = ": there has been no connection to it for 9 s"
    lost, ranks = "", ()

    def begin(self, request: Any) -> Any:
        found = self.said.get(type(request).__name__)

        def wait(timeout_s: float) -> Any:
            if found is None:
                raise LaunchError("no answer")
            return found, b""

        return SimpleNamespace(wait=wait)

    def __hash__(self) -> int:
        return hash(self.name)


def place(name: str, ways: list[str] | None = None, **more: Any) -> Host:
    said = {
        "Facts": facts(address=name),
        "Listen": 4000,
        "Ways": ways and [(name, w) for w in ways],
    }
    return cast(Host, Place(name=name, **({"said": said} | more)))


def test_hosts_that_do_not_reach_each_other_are_named() -> None:
    ways = {"h1": ["refused", "", ""], "h2": ["no answer", "", ""], "h3": None}
    shown = look([place(name, found) for name, found in ways.items()])
    assert "✗  reaches" in shown
    assert re.search(r"reaches +all others +not h1 \(no answer\)\n", shown)
    assert "(h2 to h1)" in shown
    assert re.search(r"✓  reaches +all others", look([place("h1", [""])]))


def test_a_lost_host_and_a_silent_one_are_told_with_the_reason() -> None:
    lost = place("h1", lost="its agent was killed", said={})
    shown = look([lost, place("h2", said={})])
    assert "! h1: its agent was killed" in shown
    assert "! h2: there has been no connection to it for 9 s" in shown


# --------------------------------------------------------------------------- this machine


def test_no_module_of_the_current_folder_is_imported_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a notebook may be somebody else's, or have a file of the same name."""
    (tmp_path / "json.py").write_text("open('taken', 'w')\nraise ImportError('not json')")
    monkeypatch.chdir(tmp_path)
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    checkout = Path(jaxcluster.__file__).parents[1]
    assert check_private_names({**environ, "PYTHONPATH": str(checkout)}).ok
    assert not (tmp_path / "taken").exists()


def test_a_jax_that_can_not_be_imported_is_told(tmp_path: Path) -> None:
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "__init__.py").write_text("raise ImportError('no such CPU')")
    row = check_private_names({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert row.ok is False
    assert "no such CPU" in row.cells[0]


def test_the_extension_is_looked_for_where_a_lab_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JUPYTER_PATH", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("jupyter_core.paths.ENV_JUPYTER_PATH", [])
    monkeypatch.setattr("jupyter_core.paths.SYSTEM_JUPYTER_PATH", [])
    missing = check_lab_extension()
    assert missing.ok is None and "pip install --force-reinstall" in missing.fix
    assert missing.cells[0].startswith("is not installed: JupyterLab has no sidebar")
    (tmp_path / "labextensions" / "jaxcluster-labextension").mkdir(parents=True)
    assert check_lab_extension() == Row("Lab extension", ("is installed",))


def test_the_doctor_gets_through_this_machine() -> None:
    found = run_checks()
    assert [row for row in found if row.ok is False] == []
    assert len(render(found).splitlines()) >= len(found)
    assert {"python", "jax", "devices", "/dev/shm"} <= {row.name for row in found}
