"""The CPU as a device: compiled kernels, packed weights, threads. Knows no model or text."""
