"""The view in a browser."""
