"""Puts the prebuilt JupyterLab extension into wheels, source distributions and editable installs.

So it does with the sidebar for a cell's output (``%jaxcluster panel``), which the same build makes.

A source distribution carries it built, so a wheel is made from one without Node.

The environment variable JAXCLUSTER_JS says what to do about building it with Node:

- ``auto`` (or unset): build it if it is not built or older than its sources. Without Node, or where
  that fails, warn, and leave the Lab part out; all else works without it.
- ``require``: build it again, and fail where that fails. For releases.
- ``skip``: build nothing, and take what is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "jaxcluster-labextension"
MODES = ("auto", "require", "skip")


class LabExtension(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        mode = os.environ.get("JAXCLUSTER_JS", "auto")
        if mode not in MODES:
            raise ValueError(f"JAXCLUSTER_JS={mode}: it may be {', '.join(MODES)}.")
        source = Path(self.root, "labextension")
        built = Path(self.root, "jaxcluster", "labextension")
        # What a source distribution brings is taken as it is: unpacking may set all times again.
        brought = Path(self.root, "PKG-INFO").exists() and (built / "package.json").exists()
        fresh = brought or is_fresh(built, source)
        if not brought and (mode == "require" or (mode == "auto" and not fresh)):
            why_not = build(source)
            if why_not and mode == "require":
                raise RuntimeError(f"JAXCLUSTER_JS=require, but {why_not}")
            if why_not:
                self.app.display_warning(
                    f"jaxcluster: {why_not} JupyterLab will not have its sidebar, badges and "
                    "buttons, and there is no %jaxcluster panel; all else is there. Install Node "
                    "20 or newer, and install again. (%jaxcluster doctor says whether it is there.)"
                )
            fresh = is_fresh(built, source)
        if not (built / "package.json").exists() or not (mode == "skip" or fresh):
            return
        build_data["artifacts"].append("/jaxcluster/static/sidebar")
        if self.target_name == "sdist":
            build_data["artifacts"].append("/jaxcluster/labextension")
        else:
            target = f"share/jupyter/labextensions/{NAME}"
            build_data["shared_data"][str(built)] = target
            build_data["shared_data"][str(source / "install.json")] = f"{target}/install.json"


def build(source: Path) -> str:
    """Build the extension; returns why it could not be done, or ``""``."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return "there is no Node here to build the Lab extension with."
    for command in ([npm, "ci"], [npm, "run", "build"]):
        done = subprocess.run(
            command,
            check=False,
            cwd=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            last = "\n".join(done.stdout.splitlines()[-20:])
            return f"`{' '.join(['npm', *command[1:]])}` in {source} failed:\n{last}\n"
    return ""


def is_fresh(built: Path, source: Path) -> bool:
    """Whether the extension is built, and since its sources have last changed."""
    mark = built / "package.json"
    if not mark.exists() or not (built.parent / "static" / "sidebar" / "widget.js").exists():
        return False
    return mark.stat().st_mtime >= max(p.stat().st_mtime for p in inputs(source))


def inputs(source: Path) -> Iterable[Path]:
    """What the build reads."""
    drawing = source.parent / "jaxcluster" / "static" / "shardview"
    for folder in (source / "src", source / "style", source / "schema", drawing):
        yield from (path for path in folder.rglob("*") if path.is_file())
    yield source / "widget.mjs"
    yield source / "package.json"
    yield source / "package-lock.json"
