"""Why it holds: obligations about the running functions of `draftproof.impl`, and their solvers."""
