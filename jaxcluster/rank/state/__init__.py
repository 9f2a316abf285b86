"""Saves a rank's variables in a file, and makes them again from it.

``States`` answers the notebook. One file (``file``) has raw sections and one pickle of all names,
in which each name has a section (``pickling``). ``common`` says what can't differ between ranks.
"""
