from jaxcluster.engine.app import main

main()
