"""The application of the HTTP API in this process, without a socket and mostly without a broker."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx

from broker.admin.access.roles import Role
from broker.admin.server import build
from broker.admin.services import Services
from broker.configuration.config import Config
from broker.observe.structured_log import Log
from storage.time import machine_clocks

URL: Final = "http://127.0.0.1:8080"
DAY_MS: Final = 86_400_000
PASSWORD: Final = "correct horse battery"


class Application:
    """The application on a data directory."""

    def __init__(self, data_dir: Path, **shell: Any) -> None:
        data_dir.mkdir(exist_ok=True)
        config = Config()
        config.shell.data_dir = str(data_dir)
        config.shell.admin_listen = "127.0.0.1:8080"
        for name, value in shell.items():
            setattr(config.shell, name, value)
        self.data_dir: Final = data_dir
        self.lines: Final = io.StringIO()
        self.now_s: float = 1000.0  # by the monotonic clock
        self.services: Final = Services(
            config, Log(self.lines, format="json"), clock=lambda: self.now_s
        )
        self.app: Final = build(self.services)

    def token(self, role: Role = Role.VIEWER, *, payloads: bool = False, name: str = "") -> str:
        """Make a token."""
        now_ms = machine_clocks.wall_ms()
        return self.services.tokens.add(
            name or role.word, role, payloads=payloads, now_ms=now_ms, expires_ms=now_ms + DAY_MS
        )

    def user(self, name: str = "ann", role: Role = Role.OPERATOR) -> None:
        """Add a user."""
        self.services.users.add(name, role, payloads=False, password=PASSWORD, now_ms=1)

    def play(self, story: Callable[[httpx.AsyncClient], Awaitable[None]], url: str = URL) -> None:
        """Run a story with a client of the application."""

        async def run() -> None:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=url) as client:
                await story(client)

        try:
            asyncio.run(run())
        finally:
            self.services.close()
