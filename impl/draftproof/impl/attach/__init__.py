"""Where do the checks meet other people's engines? Here, one package per engine."""
