"""What the bits of weights mean: types, decoding, packed layouts. Knows no file or device."""
