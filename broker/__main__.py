"""`python -m broker` is the command `holdfast`."""

import sys

from broker.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
