"""Fits the numbers of the memory model to public start-up logs.

    python -m tools.fit_memory RECORDS [--models FOLDER] [--write]

`RECORDS` is a JSON file of start-up records: engine, version, model, card, flags, and what the engine printed. `names`
finds the configuration and the card behind the names in a record, `records` reads one into what the planner knows
before a start and what the engine said, `fit` turns them into constants, `profile` writes those as YAML.
"""
