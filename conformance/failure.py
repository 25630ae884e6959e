"""What a check raises: `Failure` (the broker is wrong), `NotRun` (the check cannot be made)."""


class Failure(Exception):
    """The broker under test did something that the statement does not allow.

    `packet` is the wrong packet, or (`was_sent`) our packet that got a wrong answer or none;
    `expected` is what should have come instead.
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
    """The broker sent something that is wrong in any check.

    It fails the check that saw it, and is booked on `statements` for the whole run.
    """

    def __init__(
        self, statements: tuple[str, ...], message: str, *, packet: bytes, expected: str = ""
    ) -> None:
        super().__init__(f"[{', '.join(statements)}] {message}", packet=packet, expected=expected)
        self.statements: tuple[str, ...] = statements


class NotRun(Exception):
    """The check cannot be made here; the message says why."""
