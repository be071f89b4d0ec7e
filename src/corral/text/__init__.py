"""Between people and tokens: tokenizers, chat templates, stop strings. Knows no engine."""
