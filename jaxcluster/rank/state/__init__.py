"""Saves a rank's variables in a file, and makes them again from it.

``states`` answers the notebook. One file (``file``) has raw sections and one pickle of all names
(``pickles``). Arrays (``arrays``) and classes of cells (``classes``) have ways of their own.
"""
