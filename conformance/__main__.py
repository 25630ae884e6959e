"""`python -m conformance`: the same as `holdfast conformance`."""

import sys

from conformance.command import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m conformance"))
