"""Tools that make files of the project; not part of the package."""
