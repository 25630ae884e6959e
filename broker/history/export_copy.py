"""`holdfast history export`: the whole history in another directory, as segments.

Segments that exist are linked or copied; rows that only the database has become new segments beside
them. The broker may be running. Must never write into the directory of a running broker: the same
events would then be there under two names. Read next: `broker.history.reader`,
`broker.history.segment_process`.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from broker.configuration.config import Config
from broker.history.location import Place
from broker.history.queries import HistoryError, Reading
from broker.history.reader import History
from broker.history.segment_process_link import HOW_TO_INSTALL
from storage.errors import StorageError
from storage.history.segment_names import SegmentName, segment_names
from storage.local.data_directory import is_in_use


def export(config: Config, directory: str) -> str:
    """Put the whole history into `directory` as segments, rows of the database included.

    Returns one line that says what was done. Raises `HistoryError`.
    """
    from broker.history.segment_process import Segmenter  # needs pyarrow

    try:
        from broker.history.segment_files import SegmentError, SegmentWriter
    except ImportError as problem:
        raise HistoryError(f"{problem}; {HOW_TO_INSTALL}") from None
    reading = Reading(config)
    place = reading.place
    target = Path(directory).absolute()
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(config, place, target), reading.open() as history:
            copied = _copy_segments(history, place, target)
            is_copy = not _is_same(target, place.directory)
            writer = SegmentWriter(target, place.node, keep_days=0, is_copy=is_copy)
            events_max = config.shell.history_seal_events
            segmenter = Segmenter(writer.write, writer.newest, writer.end, events_max=events_max)
            for boot, first_seq, value in history.rows():
                segmenter.add(boot, first_seq, value)
            answer = segmenter.seal()
    except (StorageError, SegmentError) as problem:
        raise HistoryError(str(problem)) from None
    except FileExistsError as problem:
        raise HistoryError(f"{problem.filename}: not a directory") from None
    except OSError as problem:
        raise HistoryError(f"{problem.filename or target}: {problem.strerror}") from None
    undecoded = answer["damaged"]
    assert isinstance(undecoded, list)
    damaged = history.damaged + undecoded
    if damaged:
        others = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise HistoryError(f"{target}: all but what is damaged: {damaged[0]}{others}")
    return (
        f"{target}: {copied} segments as they were, {answer['segments']} new ones with "
        f"{answer['events']} events"
    )


@contextlib.contextmanager
def _alone(config: Config, place: Place, target: Path) -> Iterator[None]:
    """Lock `target` against the broker, if that is where it exports to."""
    if not _is_same(target, place.directory):
        yield
        return
    with open(place.lock, "ab") as lock:
        try:  # a broker that starts now waits for this lock before it exports
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_busy = is_in_use(config.shell.data_dir)
        except BlockingIOError:
            is_busy = True
        if is_busy:
            raise HistoryError(
                f"{target}: the running broker exports to it; expected another directory"
            )
        yield


def _is_same(target: Path, directory: Path) -> bool:
    """Return whether two paths lead to the same directory."""
    return directory.exists() and target.samefile(directory)


def _copy_segments(history: History, place: Place, target: Path) -> int:
    """Link (or copy) the segments of the node into `target`; return how many are new there.

    An earlier export may have made segments of rows that the broker has put into segments of its
    own since. Such a segment is removed if all its events are in the broker's segments or database.
    Otherwise it stays, and segments of the broker that hold only events of it are left out.
    """
    copied = 0
    if _is_same(target, place.directory):
        return 0
    sealed = list(segment_names(place.directory, place.node))
    kept, superseded = _earlier(history, sealed, list(segment_names(target, place.node)))
    inside = _inside(sealed, kept)
    vanished: list[SegmentName] = []
    for segment in sealed:
        path = target / segment.path.relative_to(place.directory)
        if segment.path in inside:
            path.unlink(missing_ok=True)
            continue
        if path.exists():
            continue
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.unlink(missing_ok=True)
        try:
            _link_or_copy(segment.path, unfinished)
        except FileNotFoundError:
            vanished.append(segment)  # the retention has just removed it
            continue
        unfinished.rename(path)
        copied += 1
    for mine in superseded:
        if not any(_overlap(mine, segment) for segment in vanished):
            mine.path.unlink()
    return copied


def _link_or_copy(source: Path, target: Path) -> None:
    """Link or copy `source` to `target`, durable on return; after a failure there is nothing."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system
        try:
            shutil.copyfile(source, target)
            with open(target, "rb") as copy:
                os.fsync(copy.fileno())
        except OSError:
            target.unlink(missing_ok=True)
            raise


def _earlier(
    history: History, sealed: list[SegmentName], there: list[SegmentName]
) -> tuple[list[SegmentName], list[SegmentName]]:
    """Return the segments `there` that the broker does not have: those to keep, those superseded.

    Superseded are those whose events are all in `sealed` or in the database.
    """
    sealed_in: dict[int, list[SegmentName]] = {}
    for segment in sealed:
        sealed_in.setdefault(segment.boot, []).append(segment)
    names = {segment.path.name for segment in sealed}
    waiting: dict[int, int] = {}  # boot -> the first event that only the database has
    for boot, first_seq, _ in history.rows():
        if all(each.last_seq < first_seq for each in sealed_in.get(boot, [])):
            waiting.setdefault(boot, first_seq)
    kept: list[SegmentName] = []
    superseded: list[SegmentName] = []
    for mine in there:
        if mine.path.name in names:
            continue
        next_seq = mine.first_seq
        for segment in sorted(sealed_in.get(mine.boot, []), key=lambda each: each.first_seq):
            if segment.first_seq <= next_seq:
                next_seq = max(next_seq, segment.last_seq + 1)
        is_rewritten = next_seq > mine.last_seq or next_seq == waiting.get(mine.boot)
        is_superseded = next_seq > mine.first_seq and is_rewritten
        (superseded if is_superseded else kept).append(mine)
    return kept, superseded


def _inside(sealed: list[SegmentName], kept: list[SegmentName]) -> set[Path]:
    """Return the paths of those `sealed` segments whose events are all in one `kept` segment."""
    found = set()
    reach = (0, 0)  # boot and last event of what is kept
    both = [(each.boot, each.first_seq, False, each) for each in kept]
    both += [(each.boot, each.first_seq, True, each) for each in sealed]
    for boot, _, is_sealed, segment in sorted(both, key=lambda each: each[:3]):
        if not is_sealed:
            reach = max(reach, (boot, segment.last_seq))
        elif (boot, segment.last_seq) <= reach:
            found.add(segment.path)
    return found


def _overlap(one: SegmentName, other: SegmentName) -> bool:
    return (
        one.boot == other.boot
        and one.first_seq <= other.last_seq
        and other.first_seq <= one.last_seq
    )
