"""The script for spark-submit: `spark-submit [OPTIONS] submit.py run --history DIR --out DIR`.

The arguments are those of `holdfast audit`; give master and memory to spark-submit. See
docs/audit.md about clusters.
"""

import sys

from audit.command import main

if __name__ == "__main__":
    sys.exit(main(prog="submit.py"))
