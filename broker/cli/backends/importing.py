"""`holdfast backend import`: prints our configuration for the file of an EMQX backend.

Read next: `broker.operations.emqx_import`.
"""

import argparse

from broker.cli.command import EXIT_FAILED, EXIT_OK, EXIT_USAGE, CommandError, Commands, print_lines


def add(actions: Commands) -> None:
    """Add `backend import`."""
    importing = actions.add_parser(
        "import",
        help="print the TOML for an EMQX backend's .conf; 0 = all of it, 1 = not all, 2 = no file",
    )
    importing.add_argument("file", metavar="FILE", help="etc/plugins/emqx_backend_*.conf")
    importing.set_defaults(run=run_import)


def run_import(options: argparse.Namespace) -> int:
    """Print the configuration; say on stderr what of the file is not in it."""
    from broker.operations.emqx_import import Imported

    try:
        with open(options.file, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise CommandError(f"{options.file}: {why}", EXIT_USAGE) from None
    imported = Imported(text)
    print_lines(imported.lines())
    if not imported.unknown and not imported.skipped:
        return EXIT_OK
    raise CommandError(
        f"{options.file}: {len(imported.unknown)} lines not understood, {imported.skipped} rules "
        "not imported; comments in the output name them",
        EXIT_FAILED,
    )
