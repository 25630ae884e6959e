"""Run `holdfast audit` as `python -m audit`."""

import sys

from audit.command import main

if __name__ == "__main__":
    sys.exit(main())
