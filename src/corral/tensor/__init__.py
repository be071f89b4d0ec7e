"""Tensors, operations and graphs: what is computed, with no word on where or how."""
