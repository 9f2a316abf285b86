"""The clusters of this user on this machine's disk: their folder, names, records, saved values."""
