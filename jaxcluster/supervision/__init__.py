"""Who dies with whom: processes that own others, and how those are ended (standard library only).

``commands`` runs a launcher's commands as children of the notebook's process, and ``keeper`` ends
them when that is gone. All else asks here who lives (``processes``), starts such a process
(``starting``), and ends what is its own (``ends``).
"""
