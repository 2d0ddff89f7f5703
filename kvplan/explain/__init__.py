"""Reads the start-up log of a serving engine: where the memory went, and whether its figures agree.

    bytes ──> text ──> records ──> findings ──> starts ──> readings ──> checks, memory, reasons ──> report
              decode   prefixes    patterns     one per     figures,     what the figures say
                       taken off   matched      engine      flags        together
                                                start

A figure is read only where the engine's own wording surrounds it; what is not in the log is absent, never 0.
"""
