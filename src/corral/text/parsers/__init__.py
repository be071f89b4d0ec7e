"""What a reply means: one file a format, each a coroutine over text that arrives in pieces."""
