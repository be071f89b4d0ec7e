"""Parts of a layer that at least two families share."""
