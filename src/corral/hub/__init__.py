"""From the name a user gives to a model file on this machine, fetching it where it must be."""
