"""What one start-up log says of a card's memory, kept, and used where the same engine is planned again.

    log ──> explain ──> capture ──> Calibration ──> store ──> find ──> apply ──> the parts of a budget
            reading                 one YAML file              model, GPU,
                                                               version, settings

A calibration is used only where everything agrees that changes memory; one that differs is named and left alone.
"""
