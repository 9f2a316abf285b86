"""Options of a start that stand in a file under a name: ``jaxcluster.toml``."""

from __future__ import annotations

from jaxcluster.profiles.choosing import Profile, Profiles, load

__all__ = ["Profile", "Profiles", "load"]
