"""Who dies with whom: processes that own others, and how those are ended (standard library only).

``loop.SupervisionLoop`` is a process that has others and ends with its owner: the fork server
(``engine.forkserver``) has ranks, the guard (``guard``) a launcher's commands. All else asks here
who lives (``processes``), starts such a process (``starting``), and ends what is its own
(``ends``).
"""
