"""What runs: the proven transitions, their contracts, their compiled form and the command line."""
