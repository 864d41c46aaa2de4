"""The Flower app that travels to the nodes; it only names what the installed package holds."""
