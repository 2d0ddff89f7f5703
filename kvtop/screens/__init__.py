"""Whole screens: one watch, and what lies over it for a moment."""
