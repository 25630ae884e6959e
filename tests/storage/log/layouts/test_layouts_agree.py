"""Do all layouts give the same messages, whatever is appended, rotated, refused and read?"""

from hypothesis import given
from hypothesis import strategies as st

from storage.api import Batch
from storage.errors import Recoverable
from storage.local.memory import MemoryStore
from storage.log.layouts.api import Stream
from storage.log.message_log import MessageLog
from storage.tables.tables import META
from tests.storage.log_cases import LAYOUT_NAMES, fields, message

TOPICS = ("a", "b", "a/x", "c")
STREAMS = (Stream(1, "a", 0), Stream(2, "b", 0), Stream(3, "+", 0), Stream(4, "a/#", 0))
IDS = {"a": [1, 3, 4], "b": [2, 3], "a/x": [4], "c": [3]}
SIZES = (0, 1, 1, 1, 60, 900, 4070, 5000)

runs = st.tuples(st.sampled_from(TOPICS), st.lists(st.sampled_from(SIZES), min_size=1, max_size=12))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), runs),
        st.tuples(st.just("run"), runs),
        st.tuples(st.sampled_from(("write", "refuse", "rotate", "restart")), st.none()),
        st.tuples(st.just("read"), st.integers(1, 40)),
        st.tuples(st.just("skip"), st.integers(1, 40)),
    ),
    max_size=40,
)


class Side:
    """One log, and all that its readers were given."""

    def __init__(self, layout: str, streams: list[Stream]) -> None:
        self.layout = layout
        self.store = MemoryStore([META])
        self.streams = streams
        self.batch: Batch = []
        self.seen: list[object] = []
        self.accepted = 0
        self.start()

    def start(self) -> None:
        """Open the log, as after a crash that took what was not written."""
        self.batch = []
        self.log = MessageLog(self.store, layout=self.layout)
        self.log.open(0)
        self.cursor = self.log.cursor(self.streams, 0)

    def take(self, verb: str, what: object) -> None:
        """Do one step."""
        if verb in ("append", "run"):
            assert isinstance(what, tuple)
            topic, sizes = what
            payloads = [bytes([self.accepted % 251 + n % 2]) * size for n, size in enumerate(sizes)]
            self.accepted += len(payloads)
            if verb == "run":
                self.log.append_run(self.batch, message(topic), payloads, IDS[topic])
            else:
                for payload in payloads:
                    self.log.append(self.batch, message(topic, payload), IDS[topic])
        elif verb in ("write", "refuse"):
            self.store.full = verb == "refuse"
            self.log.seal(self.batch)
            try:
                self.store.write(self.batch)
                self.batch = []
            except Recoverable:
                assert self.store.full
            self.store.full = False
        elif verb == "rotate":
            self.log.add_generation(self.batch, 0)
        elif verb == "restart":
            self.start()
        else:
            assert isinstance(what, int)
            if verb == "read":
                self.seen += [fields(one) for one in self.cursor.next(what)]
            else:
                self.seen.append(self.cursor.skip(what))

    def everything(self) -> list[object]:
        """Return what the log holds, in every way to ask."""
        self.take("write", None)
        log = self.log
        found: list[object] = [log.end]
        every = log.get_many(range(log.end + 2))
        found += [None if one is None else fields(one) for one in every]
        cursor = log.cursor(self.streams, 0)
        while page := cursor.next(7):
            found += [one.offset for one in page]
        offsets = log.cursor(self.streams, 0)
        skipped = [one for page in iter(lambda: offsets.offsets(5), []) for one in page]
        assert skipped == [one for one in found[1 + len(every) :]]
        for generation in log.list_generations():
            first, last = generation.first_offset, generation.last_offset
            for start in range(first, last + 1):  # sizes begin and end within blocks, too
                sizes = log.sizes(start, last + 1 - (start - first) // 2)
                wanted = every[start : last + 2 - (start - first) // 2]
                assert sizes == [
                    0 if one is None or one.offset > last else len(one.topic) + len(one.payload)
                    for one in wanted
                ]
            for position in range(0, log.end + 1, 5):
                found.append(log.first_owed(self.streams, position, generation=generation.number))
        for stream in log.get_streams("a/#", 0):
            iterator = log.make_iterator(stream)
            while isinstance((page_or_end := log.next(iterator, 9))[1], list) and page_or_end[1]:
                iterator, messages = page_or_end
                assert isinstance(messages, list)
                found += [one.offset for one in messages]
        assert list(log.invariants()) == []
        return found


@given(steps, st.sets(st.sampled_from(range(len(STREAMS)))))
def test_all_layouts_give_the_same(script: list[tuple[str, object]], chosen: set[int]) -> None:
    streams = [STREAMS[number] for number in sorted(chosen)]
    sides = [Side(layout, streams) for layout in LAYOUT_NAMES]
    for verb, what in script:
        for side in sides:
            side.take(verb, what)
    first, *others = sides
    everything = first.everything()
    for side in others:
        assert side.seen == first.seen, side.layout
        assert side.everything() == everything, side.layout
