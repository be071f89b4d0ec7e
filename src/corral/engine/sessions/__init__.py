"""Conversations on disk: what a cache knows outlives the process, and is found by the next one.

cache ─▶ chains ─▶ pieces ─▶ files            saving, when nothing runs any more
cache ◀─ chains ◀─ pieces ◀─ files            restoring, before anything runs; then it is proven
"""
