"""How agents get onto hosts: ``Launcher.render`` makes a plan, ``commands.Launch`` runs it."""
