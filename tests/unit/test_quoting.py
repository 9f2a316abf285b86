"""A command line comes through any login shell as it was: the real shells are asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcluster.launchers.quoting import join, quote, quote_path

SHELLS = ["sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish"]
WORDS = [
    "plain", "a b", "it's", '"x"', "\\", "\\\\", "a\\nb", "!", "!!", "a!b", "!$", "end\\", "\\'",
    "'!'\\", "$HOME", "${HOME}", "`id`", "$'x'", "a\\\\!'b", "' ; id ; '", "*", "?", "[a]", "{a,b}",
    "#c", "^a^b", "%self", "~", "~root/x", "=ls", "a=~/b", "&&", "|", "<", ">", ";", "(x)", "", " ",
    "\t", "'é€",
    "z85:.-:+=^!/*?&<>()[]{}@%$#", "--a=b c", "A=", "@", "-n", "\x01\x7f", "x" * 5000,
]  # fmt: skip
SHOW = "import json, os, sys; print(json.dumps([os.fsencode(a).decode() for a in sys.argv[1:]]))"


def through(shell: str, line: str, **env: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run(
        [path, "-c", line],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], **env},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_every_login_shell_passes_words_on_as_they_are(
    shell: str, locale: str, tmp_path: Path
) -> None:
    line = "exec env " + join(["X=1 ' !2\\", sys.executable, "-c", SHOW, *WORDS])
    assert json.loads(through(shell, line, HOME=str(tmp_path), LC_ALL=locale)) == WORDS


@pytest.mark.parametrize("shell", SHELLS)
def test_a_tilde_is_the_home_of_that_host(shell: str, tmp_path: Path) -> None:
    (tmp_path / "my env").mkdir()
    (tmp_path / "my env" / "python").symlink_to(sys.executable)
    line = f"exec {quote_path('~/my env/python')} -c {quote('print(1)')}"
    assert through(shell, line, HOME=str(tmp_path)).split() == ["1"]


@pytest.mark.parametrize("word", ["a\nb", "a\rb", "a\0b"])
def test_what_no_shell_passes_on_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="holds a"):
        quote(word)


def test_plain_words_stay_readable() -> None:
    assert join(["/usr/bin/python3", "-m", "jaxcluster.agent", "--lease=20"]) == (
        "/usr/bin/python3 -m jaxcluster.agent --lease=20"
    )
