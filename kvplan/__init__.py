"""KV budgets from real model configs, live runs, sweeps and reports."""
