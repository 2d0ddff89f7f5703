"""What a decoder is made of, read from a `config.json` or a GGUF file. No torch here."""
