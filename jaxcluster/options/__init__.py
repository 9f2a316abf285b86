"""The words that users type: a start's options, and the commands with their options.

``table`` declares each option once, and a launcher its own. ``commands`` declares each command and
magic once. The parser, ``--help``, the launchers and the page's form are made from these.
"""
