"""Checks of a start's options, and the devices of each rank. Pure."""
