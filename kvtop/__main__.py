"""`python -m kvtop`: the same as the command."""

from kvtop.cli import run

run()
