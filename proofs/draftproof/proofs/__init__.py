"""Why it holds: obligations about the very functions of `draftproof.impl`, and the solvers that decide them."""
