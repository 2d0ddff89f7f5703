"""Widgets: each draws one part of the view and holds nothing else."""
