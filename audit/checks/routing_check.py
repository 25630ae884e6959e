"""L3: a message is in every stream whose filter matches its topic and that had a holder.

Each distinct topic is matched once, with code of the audit (`audit.checks.topic_matching`), not of
the broker. Per message only a count and a sum of hashes are compared; where they differ, streams
are compared one by one.

A hole may hide the end of a subscription. A later message in the same stream shows that it had not
ended, if no holder is known to have left the stream since. Topics that were hashed on export match
only themselves, so wildcards are not checked then.
"""

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from audit.checks import topic_matching
from audit.checks.gap_filter import Tally, tally_marked
from audit.checks.stream_holders import holdings, joined
from audit.checks.verdict import Outcome
from audit.input import facts
from audit.input.batch_view import View
from audit.input.events import gseq
from audit.input.gaps import HOLE
from audit.input.kept_rows import few
from audit.spark import frame_of
from storage.history.events import SHORTENED

# Hashes are cut to 40 bits, so that their sums cannot overflow.
HASH_MASK = (1 << 40) - 1


def hashed(stream: Column) -> Column:
    """Return the hash of a stream that is used in sums."""
    return F.xxhash64(stream).bitwiseAND(HASH_MASK)


def with_wanted(view: View, rows: DataFrame) -> DataFrame:
    """Add to rows `msg_accepted` how many streams want the message, and the sum of their hashes.

    Only messages at QoS 1 and 2 must be in a stream.
    """
    topics = matches(view)
    owed = F.when((F.col("ev") == "msg_accepted") & (F.col("pub_qos") > 0), F.col("topic"))
    keyed = rows.withColumn("topic", owed)
    both = keyed.join(few(topics), ["node", "topic"], "left")
    place = F.col("gseq")

    def alive(one: Column) -> Column:
        return (one["from_gseq"] < place) & (one["to_gseq"] > place)

    zero = F.lit(0).cast("long")
    count = F.aggregate("streams", zero, lambda sum, one: sum + F.when(alive(one), 1).otherwise(0))
    total = F.aggregate(
        "streams", zero, lambda sum, one: sum + F.when(alive(one), one["hash"]).otherwise(0)
    )
    return both.select(*rows.columns, count.alias("wanted"), total.alias("wanted_sum"))


def sums() -> dict[str, Column]:
    """Return what `check` needs to know of all messages: sums over conditions, by name."""
    return {"wanted_somewhere": _decided() & (F.col("wanted") > 0), "in_other_streams": _is_odd()}


def check(view: View, messages: DataFrame, counted: Mapping[str, int]) -> Outcome:
    """Return L3. It counts the messages that at least one stream should have.

    `counted` are the `sums` of the messages.
    """
    is_odd = counted["in_other_streams"] > 0
    found = tally_marked(view, _missing(view, messages)) if is_odd else Tally()
    return found.outcome(view, "L3", counted["wanted_somewhere"])


def _decided() -> Column:
    """Return which messages are judged: each once, in the batch in which it was accepted."""
    fresh = F.col("accepted").isNotNull() & ~F.col("carried")
    return fresh & ~F.col("refused") & (F.col("pub_qos") > 0)


def _missing(view: View, messages: DataFrame) -> DataFrame:
    """Return the missing (message, stream), with node, msg, stream, what, unknown ..."""
    odd = view.keep("messages in other streams", lambda: _odd(messages))
    columns = ["node", "gseq", "ts", "msg", "topic", "pub", "session"]
    accepted = view.of("msg_accepted", columns=columns).join(
        _of_wills(view), ["node", "msg"], "left"
    )
    told = (
        accepted.withColumn("pub", F.coalesce("pub", "will_of"))
        .drop("msg", "will_of")
        .withColumnRenamed("gseq", "accepted")
        .join(few(odd), ["node", "accepted"])
        .join(matches(view), ["node", "topic"])
        .select("*", F.inline("streams"))
        .where((F.col("from_gseq") < F.col("accepted")) & (F.col("to_gseq") > F.col("accepted")))
    )
    there = view.of("msg_enqueued", columns=["node", "boot", "msg", "stream"]).join(
        few(odd.select("node", "boot", "msg")), ["node", "boot", "msg"], "left_semi"
    )
    missing = told.join(there, ["node", "boot", "msg", "stream"], "left_anti")
    wanted = view.keep("messages not in a stream", lambda: _wanted_by_others(view, missing))
    return _doubts(view, wanted)


def _of_wills(view: View) -> DataFrame:
    """Return whose will a message was: node, msg, will_of. The row of its acceptance does not."""
    fired = view.of("will_fired", columns=["node", "msg", "session"]).where("msg IS NOT NULL")
    return few(fired.groupBy("node", "msg").agg(F.max("session").alias("will_of")))


def _is_odd() -> Column:
    return _decided() & (F.col("wanted_sum") != F.col("streams_sum"))


def _odd(messages: DataFrame) -> DataFrame:
    return messages.where(_is_odd()).select("node", "boot", "msg", "accepted", "wanted")


def _wanted_by_others(view: View, missing: DataFrame) -> DataFrame:
    """Leave out streams held only by the publisher with No Local."""
    own = F.col("no_local") & (F.col("session") == F.col("pub"))
    held = holdings(view).select(
        *("node", "stream", "session", "no_local"),
        F.col("from_gseq").alias("since"),
        F.col("to_gseq").alias("until"),
    )
    place = F.col("accepted")
    keys = ["node", "boot", "msg", "stream"]
    wanted = (
        missing.drop("session")
        .join(held, ["node", "stream"])
        .where((F.col("since") < place) & (F.col("until") > place) & ~own)
        .groupBy(*keys)
        .agg(F.max("since").alias("since"))
    )
    return missing.join(wanted, keys)


def _doubts(view: View, missing: DataFrame) -> DataFrame:
    """Add `unknown`: a hole may hide the end of the subscription, or a gap the row itself."""
    enqueued = view.of("msg_enqueued", columns=["node", "stream", "gseq"])
    streams = missing.select("node", "stream", "accepted", "since").distinct()
    ends = holdings(view).select("node", "stream", "to_gseq")
    ended = (
        streams.join(ends, ["node", "stream"])
        .groupBy("node", "stream", "accepted", "since")
        .agg(F.max(F.when(F.col("to_gseq") < F.col("accepted"), F.col("to_gseq"))).alias("end"))
        .withColumn("end", F.greatest("since", "end"))
    )
    seen = (
        enqueued.join(few(ended), ["node", "stream"])
        .where((F.col("gseq") < F.col("accepted")) & (F.col("gseq") > F.col("end")))
        .groupBy("node", "stream", "accepted")
        .agg(F.max("gseq").alias("seen"))
    )
    place = F.col("accepted")
    since = F.coalesce("seen", "since")
    end = F.col("accepted") + F.col("wanted")
    unknown = view.touches_gap(F.col("node"), since, place, kinds=(HOLE,))
    unknown |= view.touches_gap(F.col("node"), place, end)
    unknown |= _beyond_the_end(view, end)
    return missing.join(seen, ["node", "stream", "accepted"], "left").select(
        "node",
        F.col("pub").alias("session"),
        "msg",
        "topic",
        "tfilter",
        "stream",
        F.lit("not_in_stream").alias("what"),
        since.alias("from_gseq"),
        place.alias("to_gseq"),
        "ts",
        unknown.alias("unknown"),
    )


def _beyond_the_end(view: View, end: Column) -> Column:
    """Return which places are after the end of the history: a tick may span two segments."""
    lasts = {boot.node: gseq(boot.boot, boot.last_seq) for boot in view.boots}
    return F.coalesce(end > facts.of_node(F.col("node"), lasts), F.lit(False))


def matches(view: View) -> DataFrame:
    """Return the streams that each topic belongs to, computed once: node, topic, streams.

    `streams` is an array of (stream, hash, tfilter, from_gseq, to_gseq), while it was held.
    """
    return view.keep("matches", lambda: _matches(view))


def _matches(view: View) -> DataFrame:
    held = joined(holdings(view), ["node", "tfilter", "stream"])
    filters = held.select("tfilter").distinct().collect()
    named = [(topic_matching.without_share(row.tfilter), n) for n, row in enumerate(filters)]
    numbers = frame_of(
        view.spark,
        [(row.tfilter, n) for n, row in enumerate(filters)],
        "tfilter string, filter int",
    )
    topics = (
        view.of("msg_accepted", columns=["node", "topic", "pub_qos"])
        .where("pub_qos > 0 AND topic IS NOT NULL")
        .where(~F.col("topic").rlike(SHORTENED))  # the filters it matches are unknown
        .select("node", "topic")
        .distinct()
    )
    matched = topics.mapInArrow(matcher(named), "node string, topic string, filter int")
    stream = F.struct(
        "stream", hashed(F.col("stream")).alias("hash"), "tfilter", "from_gseq", "to_gseq"
    )
    return (
        matched.join(F.broadcast(numbers), "filter")
        .join(held, ["node", "tfilter"])
        .groupBy("node", "topic")
        .agg(F.collect_list(stream).alias("streams"))
    )


def matcher(
    filters: list[tuple[str, int]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark runs on the distinct topics: one row per match."""
    cloudpickle.register_pickle_by_value(topic_matching)  # type: ignore[no-untyped-call] # untyped
    build = topic_matching.Trie

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        trie = build(filters)
        for batch in batches:
            nodes, topics, numbers = [], [], []
            for node, topic in zip(
                batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True
            ):
                found = trie.match(topic)
                nodes += [node] * len(found)
                topics += [topic] * len(found)
                numbers += found
            arrays = [
                pa.array(nodes, pa.string()),
                pa.array(topics, pa.string()),
                pa.array(numbers, pa.int32()),
            ]
            yield pa.RecordBatch.from_arrays(arrays, ["node", "topic", "filter"])

    return run
