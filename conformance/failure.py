"""What a check raises: `Failure` (the broker is wrong), `NotRun` (it cannot be said)."""


class Failure(Exception):
    """The broker under test did something the statement does not allow.

    `packet` is the offending packet, or (`was_sent`) the packet of ours that was not answered as it
    should; `expected` is what should have come instead.
    """

    def __init__(
        self,
        message: str,
        *,
        packet: bytes | None = None,
        was_sent: bool = False,
        expected: str = "",
    ) -> None:
        super().__init__(message)
        self.message: str = message
        self.packet: bytes | None = packet
        self.was_sent: bool = was_sent
        self.expected: str = expected


class Violation(Failure):
    """The broker sent something that is wrong whoever receives it.

    It is booked on `statements` for the whole run, besides failing the check that saw it.
    """

    def __init__(
        self, statements: tuple[str, ...], message: str, *, packet: bytes, expected: str = ""
    ) -> None:
        super().__init__(f"[{', '.join(statements)}] {message}", packet=packet, expected=expected)
        self.statements: tuple[str, ...] = statements


class NotRun(Exception):
    """The check cannot be made here; the message says why."""
