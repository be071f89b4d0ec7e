"""From logits to one token, reproducible by (seed, position). Knows no text or model."""
