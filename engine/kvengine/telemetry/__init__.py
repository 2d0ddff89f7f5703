"""What the engine publishes of itself: schema, writer, reader."""
