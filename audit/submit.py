"""The script for spark-submit: `spark-submit [OPTIONS] submit.py run --history DIR --out DIR`.

The arguments are those of `holdfast audit`; give master and memory to spark-submit. See
docs/audit.md about clusters.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python starts with the folder of this file in front, where our packages should be.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from audit.command import main

    sys.exit(main(prog="submit.py"))
