"""Where what others have published is had from."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def source() -> Callable[[str, str], str]:
    """Reads a file of a repository on GitHub."""

    def read(repository: str, path: str) -> str:
        if given := os.environ.get("JAXCLUSTER_PUBLISHED"):
            file = Path(given) / repository.replace("/", "+") / path
            if not file.exists():
                pytest.skip(f"{file} is not there")
            return file.read_text()
        url = f"https://raw.githubusercontent.com/{repository}/HEAD/{path}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return str(answer.read().decode())
        except OSError as error:
            pytest.skip(f"{url} can't be read: {error}")

    return read
