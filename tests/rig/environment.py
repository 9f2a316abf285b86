"""A Python environment for the hosts that needs no variable to find this checkout's jaxcluster.

A launcher may clear the environment (ssh, srun --export=NONE), and the environment of the tests
may have another checkout's jaxcluster installed. So the hosts have a Python of their own: this
one's packages, with the checkout before them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
SETUP = "import site, sys; sys.path.insert(0, {checkout!r}); site.addsitedir({packages!r})"


def make_environment(folder: Path, python: Path = Path(sys.executable)) -> Path:
    """Make one in ``folder``, from the Python of an environment; returns its Python."""
    ask = "import sys, sysconfig; print(sys._base_executable, sysconfig.get_path('purelib'))"
    base, packages = subprocess.run(
        [python, "-c", ask], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    version = Path(packages).parent.name
    own = folder / "lib" / version / "site-packages"
    own.mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(Path(base).resolve())
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(base).resolve().parent}\ninclude-system-site-packages = false\n"
    )
    setup = SETUP.format(checkout=str(CHECKOUT), packages=packages)
    (own / "rig.pth").write_text(setup + "\n")
    return folder / "bin" / "python"
