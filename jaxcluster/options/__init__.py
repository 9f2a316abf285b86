"""The options of a start: one table of them, and the files in which a user keeps some of them.

``table`` declares each option once. The command line and ``--help``, ``jaxcluster.toml``, the
launchers and the page's form all read it there.
"""
