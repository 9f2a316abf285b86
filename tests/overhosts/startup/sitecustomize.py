"""Run at the start of each Python that has this folder in PYTHONPATH: see tests/overhosts."""

import overhosts

overhosts.install()
