"""The broker's end of the process that writes the segments of the history.

Rows go to it over its stdin as frames, answers come back as lines of JSON; nothing else is shared.
Every call blocks and belongs to the exporter's thread, but for `kill`. The process is started with
the broker's own sources, ends when its stdin does, and takes no signal that is meant for us. Read
next: `broker.history.segment_process`, the other end.
"""

import json
import struct
import subprocess
from collections.abc import Iterable, Sequence
from typing import Final

from broker import own_process
from broker.history.location import Place
from storage.tables.export_row import ExportProgress

# kind, boot, first seq, size of the packed row that follows
FRAME: Final = struct.Struct(">BIQI")
ROW: Final = 1
SEAL: Final = 2  # write what you have been given, answer when it is durable

# By file, not by name: what an index has under a name may be somebody else's.
HOW_TO_INSTALL: Final = (
    "pip install '.[history]' in a checkout of Holdfast, or 'FILE.whl[history]' with its wheel"
)
END_S: Final = 2.0  # for closing; it then has nothing to do any more
LINE_CHARACTERS_MAX: Final = 300  # of what is logged of a process that died


class SegmenterFailed(Exception):
    """The process is of no use any more; one line for the log."""


class Sealed:
    """What became of the rows of one `seal`: all of them may be trimmed now."""

    __slots__ = ("chain", "damaged", "events", "problem", "segments")

    def __init__(
        self,
        segments: int,
        events: int,
        damaged: Sequence[str] = (),
        problem: str = "",
        chain: tuple[int, int, str] | None = None,
    ) -> None:
        self.segments: int = segments
        self.events: int = events  # in them
        self.damaged: Sequence[str] = damaged  # rows that cannot be read; a line each
        self.problem: str = problem  # what went wrong besides, with old segments
        # Where the newest segment ends, boot and seq, and its head; None = nothing was written.
        self.chain: tuple[int, int, str] | None = chain


class SegmenterLink:
    """A running process that writes segments."""

    def __init__(
        self, place: Place, *, seal_events: int, keep_days: int, before: ExportProgress
    ) -> None:
        """Start it. Raises `SegmenterFailed`.

        The first segment follows the one where `before` ends, if that is not on this machine.
        """
        command = own_process.command("broker.history.segment_process")
        command += ["--node", place.node, "--lock", str(place.lock)]
        command += ["--events", str(seal_events), "--keep-days", str(keep_days)]
        if before.head:
            command += ["--before", f"{before.end[0]}:{before.end[1]}:{before.head}"]
        command += ["--", str(place.directory)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=own_process.environment(),
                start_new_session=True,  # Ctrl-C on a terminal is for the broker
            )
        except OSError as problem:
            raise SegmenterFailed(f"cannot start it: {problem}") from None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Hand over rows: boot, first seq, packed row. Raises `SegmenterFailed`."""
        pieces: list[bytes] = []
        for boot, first_seq, row in rows:
            pieces += (FRAME.pack(ROW, boot, first_seq, len(row)), row)
        self._write(b"".join(pieces))

    def seal(self) -> Sealed:
        """Return once every row that was sent is in a durable segment. Raises `SegmenterFailed`."""
        self._write(FRAME.pack(SEAL, 0, 0, 0))
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line.endswith(b"\n"):
            try:
                answer = json.loads(line)
                chain = answer["chain"]
                return Sealed(
                    answer["segments"],
                    answer["events"],
                    answer["damaged"],
                    answer["problem"],
                    None if chain is None else (chain[0], chain[1], chain[2]),
                )
            except (ValueError, TypeError, KeyError):
                if line.startswith(b'{"error"'):
                    break
            line = self._process.stdout.readline()  # a library has said something between
        raise self._failure(line)

    def end(self) -> None:
        """Let it end and wait for that; what was sent and not sealed is forgotten."""
        self._close_input()
        try:
            self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def kill(self) -> None:
        """End it at once; a call that waits for it fails. From any thread."""
        self._process.kill()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._failure(b"") from None

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            return  # it had ended with something unread: it is gone

    def _failure(self, line: bytes) -> SegmenterFailed:
        """Return what it said last, or how it ended."""
        self._close_input()  # which ends it, if it has not ended yet
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            return SegmenterFailed("it has ended")
        lines = (line + self._process.stdout.read()).decode(errors="replace").splitlines()
        said = next((text.strip() for text in reversed(lines) if text.strip()), "")
        try:
            said = str(json.loads(said)["error"])
        except (ValueError, TypeError, KeyError):
            said = said[:LINE_CHARACTERS_MAX]
        self._process.stdout.close()
        status = self._process.wait()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return SegmenterFailed(said or f"it ended with {how} and said nothing")
