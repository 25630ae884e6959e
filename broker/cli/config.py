"""`holdfast config`: show the configuration in force, or a template of one."""

import argparse

from broker.cli.command import EXIT_OK, Commands, add_config_flags, load_config, print_lines


def add(commands: Commands) -> None:
    """Add `config show` and `config init`."""
    config = commands.add_parser("config", help="show the configuration, or a template of one")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print every setting in force and where it came from")
    add_config_flags(show)
    show.set_defaults(run=run_config_show)
    init = actions.add_parser("init", help="print a configuration file with every default")
    init.set_defaults(run=run_config_init)


def run_config_show(options: argparse.Namespace) -> int:
    """Print the configuration in force with the origin of every value."""
    from broker.configuration.show import show

    print_lines([show(load_config(options))])
    return EXIT_OK


def run_config_init(options: argparse.Namespace) -> int:
    """Print a commented configuration file."""
    from broker.configuration.show import template

    print_lines([template()])
    return EXIT_OK
