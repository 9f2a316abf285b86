"""``python -m jaxcluster.agent``: an agent of this host (see ``server``)."""

from jaxcluster.agent.server import main

if __name__ == "__main__":
    main()
