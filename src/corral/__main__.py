"""`python -m corral` is the command `corral`."""

import sys

from corral.cli.main import main

sys.exit(main())
