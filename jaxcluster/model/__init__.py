"""Cells, findings and arrays as data, and their words. Pure: no sockets, no processes."""
