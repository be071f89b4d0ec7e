"""CUDA devices. Knows the driver; of models and engines it knows nothing."""
