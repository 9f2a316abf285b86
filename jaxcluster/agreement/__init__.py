"""No program that spans processes is launched before all of its processes have announced it.

``referee`` decides, without a clock or a socket. ``server`` and ``client`` carry what they say.
This package uses the standard library alone.
"""
