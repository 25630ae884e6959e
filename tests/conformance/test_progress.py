"""What is said while a run goes on."""

import io

from conformance.progress import Printer
from conformance.results import Outcome, Result
from conformance.statements import Statement


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def result(outcome: Outcome, reason: str = "") -> Result:
    return Result(Statement("X-01", 5, "X", "server", "yes", ""), outcome, "Says.", reason)


def test_a_terminal_sees_one_line_that_counts() -> None:
    screen = Terminal()
    printer = Printer(screen)
    printer.begin(2)
    printer.done(result("pass"))
    printer.done(result("not run"))
    lines = screen.getvalue().split("\r\x1b[K")
    assert lines[-1].startswith("[  2/2] 1 passed, 0 failed, 1 not run")
    assert lines[-1].endswith("\n")
    assert screen.getvalue().count("\n") == 1


def test_a_file_gets_few_lines() -> None:
    file = io.StringIO()
    printer = Printer(file)
    printer.begin(500)
    for _ in range(500):
        printer.done(result("pass"))
    assert file.getvalue().count("\n") == 2
    assert "\x1b" not in file.getvalue()


def test_failures_are_said_at_once_with_their_first_line() -> None:
    file = io.StringIO()
    printer = Printer(file)
    printer.begin(3)
    printer.done(result("fail", "no PUBLISH\nat all"))
    assert "fail X-01: no PUBLISH\n" in file.getvalue()
    printer.done(result("error", "Traceback\n  line\nNameError: x"))
    assert "error X-01: NameError: x\n" in file.getvalue()


def test_quiet_means_quiet() -> None:
    file = io.StringIO()
    printer = Printer(file, quiet=True)
    printer.begin(1)
    printer.say("hello")
    printer.done(result("fail", "x"))
    assert file.getvalue() == ""
