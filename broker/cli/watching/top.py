"""`holdfast top`: the figures of a running broker, each second, on a terminal.

Must stay quick to import, as `broker.cli.main` must. Read next: `broker.cli.watching.top_screen`.
"""

import argparse
import json
import os
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from broker.cli.administration.asking import ask_broker
from broker.cli.command import EXIT_OK, CommandError, Commands, add_config_flags, print_lines

if TYPE_CHECKING:
    import curses

    from broker.cli.watching.top_screen import Figures, Owing

PERIOD_S: Final = 1.0
KEYS_MS: Final = 100  # how often keys are looked at
QUIT: Final = frozenset((ord("q"), ord("Q"), 27))  # 27: Escape
PLAIN_HEIGHT: Final = 40  # without a terminal


def add(commands: Commands) -> None:
    top = commands.add_parser("top", help="watch the figures of a running broker (q ends it)")
    top.add_argument("--once", action="store_true", help="print them once, a second's worth")
    add_config_flags(top)
    top.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the figures until q; print them once where there is no terminal."""
    if options.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        print_once(options)
        return EXIT_OK
    import curses
    import locale

    first = Look(options)
    locale.setlocale(locale.LC_ALL, "")
    os.environ.setdefault("ESCDELAY", "25")
    for name in ("COLUMNS", "LINES"):  # the terminal knows its size, also when that changes
        os.environ.pop(name, None)
    watching = Watching(options, first)
    try:
        curses.wrapper(Screen(watching).show)
    except curses.error as problem:
        raise CommandError(f"the terminal cannot show it ({problem}): say --once") from None
    finally:
        watching.end()
    return EXIT_OK


def print_once(options: argparse.Namespace) -> None:
    """Print what happened in a second, and what is."""
    from broker.cli.watching import top_screen

    before = Look(options)
    time.sleep(PERIOD_S)
    now = Look(options)
    width = shutil.get_terminal_size((100, PLAIN_HEIGHT)).columns
    shown = top_screen.lines(
        before.figures, now.figures, now.owing, now.top, width=width, height=PLAIN_HEIGHT
    )
    print_lines(line.rstrip() for line in shown)


class Look:
    """What the broker has said once."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Ask it. Raises `CommandError`."""
        self.figures: Figures = json.loads(ask_broker(options, {"do": "live_figures"})["figures"])
        self.owing: Owing = _owing(options)
        self.top: list[dict[str, Any]] = json.loads(self.owing.top)


def _owing(options: argparse.Namespace) -> "Owing":
    from broker.cli.watching.top_screen import Owing

    try:
        return Owing(ask_broker(options, {"do": "backlog_totals"}))
    except CommandError as problem:
        return Owing(None, str(problem))


class Watching:
    """Asks the broker each second, on a thread of its own: keys never wait for an answer."""

    def __init__(self, options: argparse.Namespace, first: Look) -> None:
        self._options: Final = options
        self._ended: Final = threading.Event()
        # Replaced as a whole: the last two looks, and why there is no newer one.
        self.seen: tuple[Look, Look, str] = (first, first, "")
        self._thread: Final = threading.Thread(target=self._run, name="top", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_S):
            before, now, _ = self.seen
            try:
                newer = Look(self._options)
            except CommandError as problem:
                self.seen = (before, now, str(problem))
                continue
            if newer.figures["at_s"] <= now.figures["at_s"]:
                now = newer  # another broker, on a machine that has started again
            self.seen = (now, newer, "")

    def end(self) -> None:
        """Ask no more; does not wait for an answer."""
        self._ended.set()


class Screen:
    """The terminal."""

    def __init__(self, watching: Watching) -> None:
        self._watching: Final = watching

    def show(self, screen: "curses.window") -> None:
        """Show what is seen until a key ends it; at another size show it again."""
        import curses

        try:
            curses.curs_set(0)
        except curses.error:
            pass  # this terminal always has a cursor
        screen.timeout(KEYS_MS)
        drawn: object = None
        while True:
            seen = self._watching.seen
            if seen is not drawn:
                self._draw(screen, *seen)
                drawn = seen
            key = screen.getch()
            if key in QUIT:
                return
            if key == curses.KEY_RESIZE:
                curses.update_lines_cols()
                screen.clearok(True)  # what the terminal has made of the old lines is not known
                drawn = None

    def _draw(self, screen: "curses.window", before: Look, now: Look, problem: str) -> None:
        import curses

        from broker.cli.watching import top_screen

        height, width = screen.getmaxyx()
        shown = top_screen.lines(
            before.figures, now.figures, now.owing, now.top, width=width, height=height
        )
        screen.erase()
        for row, line in enumerate(shown):
            look = curses.A_BOLD if row == 0 or line.startswith("OWED MOST") else curses.A_NORMAL
            self._put(screen, row, line, width, look)
        if problem:
            text = top_screen.fit(f"NO ANSWER: {problem}", width)
            self._put(screen, height - 1, text, width, curses.A_REVERSE)
        screen.refresh()

    @staticmethod
    def _put(screen: "curses.window", row: int, line: str, width: int, look: int) -> None:
        import curses

        try:
            screen.addnstr(row, 0, line.rstrip(), width, look)
        except (curses.error, UnicodeEncodeError):
            # The last place of a screen cannot be written, and not every terminal has all letters.
            text = line.rstrip().encode("ascii", "backslashreplace").decode()
            try:
                screen.addnstr(row, 0, text, max(0, width - 1), look)
            except curses.error:
                pass  # it has become smaller meanwhile
