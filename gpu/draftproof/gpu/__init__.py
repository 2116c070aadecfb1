"""Where it runs fast: the part of draftproof that needs a device."""
