"""`holdfast health`: ask a running broker whether it is well."""

import argparse

from broker.cli.command import EXIT_OK, EXIT_USAGE, CommandError, Commands, print_lines


def add(commands: Commands) -> None:
    """Add `health`."""
    health = commands.add_parser("health", help="ask a running broker whether it is well")
    health.add_argument("-c", "--config", metavar="FILE", help="the broker's configuration file")
    health.add_argument("--url", help="address of its metrics server, instead of a configuration")
    health.set_defaults(run=run_health)


def run_health(options: argparse.Namespace) -> int:
    """Ask /healthz of the configured broker; made for Docker's HEALTHCHECK."""
    import urllib.error
    import urllib.request

    if options.url is not None:
        url = options.url.rstrip("/")
    else:
        from broker.configuration.config import ConfigError
        from broker.configuration.load import load

        try:
            shell = load(options.config).shell
        except ConfigError as problem:
            raise CommandError(str(problem), EXIT_USAGE) from None
        host = shell.metrics_host
        if host in ("0.0.0.0", "::"):
            host = "127.0.0.1" if host == "0.0.0.0" else "::1"
        url = f"http://[{host}]" if ":" in host else f"http://{host}"
        url += f":{shell.metrics_port}"
    # No proxy: the broker is on this machine, whatever http_proxy says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/healthz", timeout=5) as response:
            answer = response.read(200).decode(errors="replace").strip()
    except urllib.error.HTTPError as refusal:
        detail = refusal.read(200).decode(errors="replace").strip()
        raise CommandError(f"{url}/healthz: {refusal.code} {detail}") from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "reason", problem)
        raise CommandError(f"{url}/healthz: {reason}") from None
    print_lines([answer])
    return EXIT_OK
