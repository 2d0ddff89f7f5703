"""Request traces in other people's formats: who asked when, for how many tokens, and what prompts have in common."""
