"""`python -m holdfast_mqtt` is the command `holdfast`."""

import sys

from holdfast_mqtt import main

if __name__ == "__main__":
    sys.exit(main())
