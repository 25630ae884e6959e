"""`python -m broker` is the command `holdfast`."""

import sys

from broker.cli import main

if __name__ == "__main__":
    sys.exit(main())
