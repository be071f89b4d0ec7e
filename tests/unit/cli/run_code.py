"""Runs code given as an argument, because `python -m` is how the tests start processes."""

import sys

if __name__ == "__main__":
    exec(sys.argv[1])
