"""What the doctor says of made-up machines, and that it gets through this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcluster
from jaxcluster import doctor
from jaxcluster.doctor import (
    Check,
    ask_private_names,
    check_devices,
    check_fork,
    check_hostname,
    check_jax,
    check_jaxlib_match,
    check_lab_extension,
    check_loopback,
    check_package,
    check_private_names,
    check_proxies,
    check_python,
    check_runtime_dir,
    check_shared_memory,
    render,
    run_checks,
)


def test_each_failing_line_has_its_fix_below() -> None:
    checks = [
        Check("Python", True, "3.11.7", fix="not shown"),
        Check("shared memory", None, "1 MB free", fix="more of it"),
        Check("jax", False, "is not installed", fix="pip install jax"),
        Check("fork", None, "is not here"),
    ]
    assert render(checks) == (
        "✓ Python         3.11.7\n"
        "! shared memory  1 MB free\n"
        "                 fix: more of it\n"
        "✗ jax            is not installed\n"
        "                 fix: pip install jax\n"
        "! fork           is not here"
    )


# ------------------------------------------------------------------------- private names


def test_private_names_that_have_moved_are_told_with_what_that_costs() -> None:
    check = check_private_names({"launch journal": "divergence is not found"}, 0.94)
    assert check.ok is None
    assert check.detail == (
        "moved in this jax: launch journal (divergence is not found) "
        "(checked in 0.9 s, by a process that imported jax)"
    )
    # How much else works is not known: a jax without these names may start no cluster at all.
    assert check.fix == 'use a jax that was tried: pip install "jax>=0.9.1,<0.13"'


def test_this_jax_has_them() -> None:
    missing, seconds = ask_private_names(os.environ)
    assert missing == {}
    assert check_private_names(missing, seconds).ok


def test_no_module_of_the_current_folder_is_imported_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a notebook may be somebody else's, or have a file of the same name."""
    (tmp_path / "json.py").write_text("open('taken', 'w')\nraise ImportError('not json')")
    monkeypatch.chdir(tmp_path)
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    checkout = Path(jaxcluster.__file__).parents[1]
    missing, _ = ask_private_names({**environ, "PYTHONPATH": str(checkout)})
    assert missing == {}
    assert not (tmp_path / "taken").exists()


def test_a_jax_that_can_not_be_imported_is_told(tmp_path: Path) -> None:
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib" / "__init__.py").write_text("raise ImportError('no such CPU')")
    missing, seconds = ask_private_names({**os.environ, "PYTHONPATH": str(tmp_path)})
    check = check_private_names(missing, seconds)
    assert check.ok is False
    assert "no such CPU" in check.detail


# --------------------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("version", "ok"),
    [((3, 10, 9), False), ((3, 11, 0), True), ((3, 14, 2), True), ((3, 15, 0), None)],
)
def test_python_is_supported_from_3_11_to_3_14(version: tuple[int, ...], ok: bool | None) -> None:
    assert check_python(version).ok is ok


@pytest.mark.parametrize(
    ("version", "ok"),
    [("9.2.0", True), ("9", True), ("10.0.0.dev1", True), ("8.9.1", False), (None, False)],
)
def test_a_package_that_is_too_old_or_missing_says_what_to_install(
    version: str | None, ok: bool
) -> None:
    check = check_package("ipyparallel", "9", True, lambda name: version)
    assert check.ok is ok
    assert ok or check.fix == 'pip install "ipyparallel>=9"'


def test_versions_are_compared_as_numbers() -> None:
    assert check_package("jax", "0.9", True, lambda name: "0.10.2").ok is True


@pytest.mark.parametrize(
    ("version", "ok"),
    [("0.9.0.1", False), ("0.9.1", True), ("0.12.0.1", True), ("0.12.7", True), ("0.13.0", None)],
)
def test_a_jax_is_too_old_for_a_cluster_or_newer_than_what_was_tried(
    version: str, ok: bool | None
) -> None:
    check = check_jax(lambda name: version)
    assert check.ok is ok
    fixes = {
        False: 'pip install "jax>=0.9.1"',
        None: 'if something fails: pip install "jax>=0.9.1,<0.13"',
        True: "",
    }
    assert check.fix == fixes[ok] or ok is True


def test_a_lab_without_its_extension_is_a_warning_and_says_how_to_have_it() -> None:
    check = check_lab_extension("4.2.0", None, "0.1.0")
    assert check.ok is None
    assert check.detail.startswith("is not installed: JupyterLab has no sidebar")
    assert "without Node" in check.detail
    assert check.fix.startswith("pip install --force-reinstall --no-deps jaxcluster")


def test_an_extension_of_another_version_is_a_warning() -> None:
    assert check_lab_extension("4.2.0", "0.1.0", "0.1.0") == Check("Lab extension", True, "0.1.0")
    other = check_lab_extension("4.2.0", "0.1.0", "0.2.0")
    assert (other.ok, other.detail) == (None, "is 0.1.0, and jaxcluster is 0.2.0")
    assert other.fix.endswith('"jaxcluster==0.2.0"')


def test_without_a_lab_no_extension_is_missed() -> None:
    assert check_lab_extension(None, None, "0.1.0").ok is True


def test_the_extension_is_looked_for_where_a_lab_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JUPYTER_PATH", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("jupyter_core.paths.ENV_JUPYTER_PATH", [])
    monkeypatch.setattr("jupyter_core.paths.SYSTEM_JUPYTER_PATH", [])
    assert doctor._lab_extension() is None
    there = tmp_path / "labextensions" / "jaxcluster-labextension"
    there.mkdir(parents=True)
    (there / "package.json").write_text('{"version": "7.8.9"}')
    assert doctor._lab_extension() == "7.8.9"


@pytest.mark.parametrize("version", ["4.1.0", None])
def test_jupyterlab_missing_or_old_is_only_a_warning(version: str | None) -> None:
    check = check_package("jupyterlab", "4.2", False, lambda name: version)
    assert check.ok is None
    assert check.fix == 'pip install "jupyterlab>=4.2"'


@pytest.mark.parametrize(
    ("jax", "jaxlib", "ok"),
    [
        ("0.10.2", "0.10.2", True),
        ("0.10.2", "0.10.1", True),
        ("0.12.0.1", "0.12.0", True),
        ("0.10.2", "0.9.1", None),
        ("0.10.1", "0.10.2", False),
        ("0.10.2", None, False),
    ],
)
def test_jaxlib_newer_than_jax_is_refused_as_jax_does(
    jax: str, jaxlib: str | None, ok: bool | None
) -> None:
    check = check_jaxlib_match(jax, jaxlib)
    assert check.ok is ok
    assert bool(check.fix) is (ok is not True)


# --------------------------------------------------------------------------- network


def test_a_loopback_without_ports_says_why() -> None:
    def refuse() -> int:
        raise PermissionError("Operation not permitted")

    check = check_loopback(refuse)
    assert check.ok is False
    assert check.detail == "no port on 127.0.0.1 can be reached: Operation not permitted"
    assert check_loopback(lambda: 41234).detail == "a port on 127.0.0.1 can be reached (41234)"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network namespace")
def test_a_loopback_that_is_down_is_found() -> None:
    """There a port can be bound, and not be reached."""
    look = "from jaxcluster.doctor import check_loopback, _reach_loopback as reach"
    words = [sys.executable, "-c", f"{look}; print(check_loopback(reach))"]
    made = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("no network namespaces here")
    found = subprocess.run(["unshare", "--net", *words], check=True, capture_output=True, text=True)
    assert "ok=False" in found.stdout
    assert "Network is unreachable" in found.stdout
    assert "ip link set lo up" in found.stdout


def test_a_host_name_that_leads_astray_needs_no_mending_for_jaxcluster() -> None:
    def unknown(name: str) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    unresolved = check_hostname("box", unknown)
    debian = check_hostname("box", lambda name: ["127.0.1.1", "127.0.1.1"])
    assert unresolved.ok is None
    assert "box does not resolve" in unresolved.detail
    assert debian.ok is None
    assert debian.detail.startswith("box is 127.0.1.1: jaxcluster sets the addresses itself")
    assert debian.fix.startswith("not needed for jaxcluster")
    assert check_hostname("box", lambda name: ["10.0.0.7"]) == Check(
        "hostname", True, "box is 10.0.0.7"
    )


def test_a_proxy_that_grpc_would_ask_for_loopback_says_what_to_type() -> None:
    check = check_proxies({"https_proxy": "http://proxy:3128", "no_proxy": "localhost,.corp"})
    assert check.ok is False
    assert check.detail.startswith("https_proxy set and no_proxy does not exempt 127.0.0.1")
    assert check.fix == "%env no_proxy=localhost,.corp,127.0.0.1"


def test_the_fix_for_a_proxy_mends_it() -> None:
    environ = {"http_proxy": "http://proxy:3128"}
    name, _, value = check_proxies(environ).fix.removeprefix("%env ").partition("=")
    assert check_proxies({**environ, name: value}).ok is True


@pytest.mark.parametrize("exempt", ["127.0.0.1", "a.corp, 127.0.0.1", "127.0.0.0/8"])
def test_a_proxy_with_loopback_exempt_is_fine(exempt: str) -> None:
    assert check_proxies({"http_proxy": "http://proxy:3128", "no_proxy": exempt}).ok is True


@pytest.mark.parametrize("exempt", ["localhost", "*"])
def test_names_and_stars_do_not_exempt_loopback(exempt: str) -> None:
    assert check_proxies({"http_proxy": "http://proxy:3128", "no_proxy": exempt}).ok is False


def test_grpcs_own_exemptions_replace_the_general_ones() -> None:
    environ = {"grpc_proxy": "http://proxy:3128", "no_proxy": "127.0.0.1", "no_grpc_proxy": "x"}
    assert check_proxies(environ).fix == "%env no_grpc_proxy=x,127.0.0.1"


def test_upper_case_proxies_do_not_matter_to_grpc() -> None:
    assert check_proxies({"HTTP_PROXY": "http://proxy:3128"}).ok is True
    assert check_proxies({}).ok is True


# --------------------------------------------------------------------------- machine


def test_devices_are_listed_with_what_jax_lacks_to_use_them() -> None:
    assert check_devices([], 0, 2, False) == Check("devices", True, "2 CPU cores")
    assert check_devices([], 4, 96, False).detail == "4 TPU chips, 96 CPU cores"
    assert check_devices(["0", "1"], 0, 8, True).detail == "2 GPUs (0,1), 8 CPU cores"
    unused = check_devices(["0"], 0, 8, False)
    assert unused.ok is None
    assert "jax has no CUDA plugin" in unused.detail
    assert 'pip install "jax[cuda12]"' in unused.fix


def test_a_private_runtime_directory_is_good(tmp_path: Path) -> None:
    private = tmp_path / "run"
    private.mkdir(mode=0o700)
    assert check_runtime_dir(private).ok is True


def test_a_runtime_directory_that_is_yet_to_be_made_is_good(tmp_path: Path) -> None:
    missing = tmp_path / "a" / "b"
    assert check_runtime_dir(missing).ok is True
    assert not missing.exists()


def test_a_runtime_directory_open_to_others_says_how_to_close_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    check = check_runtime_dir(tmp_path)
    assert check.ok is False
    assert check.detail == f"{tmp_path} is open to other users (drwxr-xr-x)"
    assert check.fix == f"chmod 700 {tmp_path}"


def test_a_file_in_the_place_of_the_runtime_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.touch()
    assert check_runtime_dir(path).detail == f"{path} is not a directory"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_runtime_directory_of_another_user_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, -1)
    assert check_runtime_dir(path).detail == f"{path} belongs to user id 12345"


@pytest.mark.parametrize(
    ("free_nbytes", "ok"), [(64 * 2**20, True), (64 * 2**20 - 1, None), (None, None)]
)
def test_less_than_64_mb_of_shared_memory_is_a_warning(
    free_nbytes: int | None, ok: bool | None
) -> None:
    assert check_shared_memory(free_nbytes).ok is ok


def test_no_fork_is_a_warning_that_starts_are_slower() -> None:
    assert check_fork(True).ok is True
    assert check_fork(False).ok is None
    assert "slower" in check_fork(False).detail


def test_the_doctor_gets_through_this_machine(tmp_path: Path) -> None:
    checks = run_checks(tmp_path / "run", environ={})
    names = [check.name for check in checks]
    assert len(names) == len(set(names))
    failed = [check for check in checks if check.ok is False]
    assert failed == []
    assert len(render(checks).splitlines()) >= len(checks)


def test_the_doctor_does_not_import_jax(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from jaxcluster import doctor; "
        f"doctor.run_checks(pathlib.Path({str(tmp_path)!r})); "
        "sys.exit('jax' in sys.modules or 'jaxlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
