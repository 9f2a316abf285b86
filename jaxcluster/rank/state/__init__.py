"""Saves a rank's variables in a file, and makes them again from it.

``states`` answers the notebook. One file (``file``) has raw sections and one pickle of all names
(``pickling``), from which ``loading`` makes them again. ``common`` says what can't differ between
ranks.
"""
