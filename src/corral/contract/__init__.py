"""What clients and the engine say to each other, as plain data. Knows none who speak."""
