"""Where graphs run: a device owns memory, a backend executes on it."""
