"""The KV cache in integers: block sizes, ids and tables. It knows no array and no device."""
