"""Entry of the worker process."""

import sys

from corral.worker.worker import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
