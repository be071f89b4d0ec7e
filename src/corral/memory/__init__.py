"""How many bytes, for how long, and who answers for them."""
