"""What spark-submit runs: `spark-submit [OPTIONS] submit.py run --history DIR --out DIR`.

The arguments are those of `holdfast audit`; the master and the memory are spark-submit's. See
docs/audit.md for a cluster.
"""

import sys

from audit.command import main

if __name__ == "__main__":
    sys.exit(main(prog="submit.py"))
