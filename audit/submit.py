"""What spark-submit runs: `spark-submit [OPTIONS] submit.py run --history DIR --out DIR`.

The arguments are those of `holdfast audit`; the master and the memory are spark-submit's. See
docs/audit.md for a cluster.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python starts with the folder of this file in front, where our packages should be.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from audit.command import main

    sys.exit(main(prog="submit.py"))
