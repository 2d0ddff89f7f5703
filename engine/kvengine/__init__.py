"""The paged engine: block pool, block tables, scheduler, model runner, telemetry."""
