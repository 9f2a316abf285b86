"""Facts of one machine: its processes and devices (standard library only)."""
