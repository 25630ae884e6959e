"""`python -m tests.conformance.wrong NAME PORT WEBSOCKET_PORT COMMAND...`: a wrong broker."""

import sys

from tests.conformance.wrong import toys
from tests.conformance.wrong.mutant import TOYS
from tests.conformance.wrong.mutants import MUTANTS
from tests.conformance.wrong.proxy import Server


def main() -> int:
    """Serve until SIGTERM."""
    name, port, websocket_port, *command = sys.argv[1:]
    if name in TOYS:
        return toys.serve(name, *filter(None, (int(port), int(websocket_port))))
    return Server(MUTANTS[name], int(port), int(websocket_port)).run(command)


if __name__ == "__main__":
    sys.exit(main())
