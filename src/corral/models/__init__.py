"""Model families: metadata and tensor names in, graphs out. They know no device."""
