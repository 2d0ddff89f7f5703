"""The HTML report: one file with everything in it, which needs no network."""
