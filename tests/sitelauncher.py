"""Packages of a site's with launchers, installed in folders of their own."""

from __future__ import annotations

import re
from pathlib import Path

from jaxcluster.launchers.base import Launcher, launcher_of
from jaxcluster.options.arguments import Parser, start_options
from jaxcluster.options.known import known

ROOT = Path(__file__).parents[1]


def documented() -> str:
    """The launcher that docs/how-to/launcher.md shows."""
    text = (ROOT / "docs/how-to/launcher.md").read_text()
    return str(re.findall(r"```python\n(.*?)```", text, re.S)[0])


def install(folder: Path, package: str, source: str, **launchers: str) -> Path:
    """Put a package with one module into a folder that is to stand in ``sys.path``.

    Args:
      launchers: by their names their classes in the module.
    """
    module = f"{package}_launcher"
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {module}:{cls}" for name, cls in launchers.items()]
    (info / "entry_points.txt").write_text("\n".join(["[jaxcluster.launchers]", *lines]) + "\n")
    return folder


def launched(line: str) -> tuple[Launcher | None, str]:
    """(the launcher, the hosts' Python) of what is typed behind ``%jaxcluster start``."""
    given = start_options(Parser("%jaxcluster start").read(line))
    typed = {name: value for name, value in given.items() if name in known().of_launchers}
    return launcher_of(given.get("launcher"), typed, given.get("num_processes"))
