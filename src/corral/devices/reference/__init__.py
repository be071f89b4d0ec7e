"""The reference device: every operation in plain NumPy, the oracle of all others."""
