"""The KV cache in integers: bytes of a block, block ids, tables. It knows no array and no device."""
