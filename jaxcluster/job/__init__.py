"""Jobs of plain processes: ``jaxcluster.agree``, and the processes of ``jaxcluster run``."""
