"""Statistics of sessions and clients: absences, ages, connections, traffic; retained topics.

All results add up over batches: counts, half-octave histograms, and changes per minute. An absence
or a session's age counts in the batch in which it ended, wherever it began.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from audit.analytics.messages import client_code, minute_of
from audit.input.batch_view import View
from audit.report.summary import BUCKET_MAX, BUCKET_MIN

LOST: Final = 1001
CRASHED: Final = 1002
RETAINED: Final = ("retained_set", "retained_cleared", "retained_expired")

_LIVES: Final = (
    "session_created",
    "session_resumed",
    "session_disconnected",
    "session_expired",
    "session_terminated",
)


def bucket_of(micros: Column) -> Column:
    """Return the half octave of a duration (`audit.report.summary.bucket_start_ms`)."""
    ms = F.greatest(micros, F.lit(1)) / F.lit(1000.0)
    bucket = F.floor(F.log2(ms) * 2).cast("int")
    return F.least(F.greatest(bucket, F.lit(BUCKET_MIN)), F.lit(BUCKET_MAX))


def durations(view: View) -> DataFrame:
    """Return (kind, tenant, bucket, count) of absences (`offline`) and ages at the end (`age`)."""
    rows = view.sessions.where(F.col("ev").isin(*_LIVES)).select(
        "node", "session", "gseq", "ev", "carried", F.coalesce("tenant", F.lit("")).alias("tenant"),
        F.unix_micros(F.coalesce("at", "ts")).alias("us"),
    )  # fmt: skip
    life = Window.partitionBy("node", "session").orderBy("gseq")
    ended = F.col("ev").isin("session_expired", "session_terminated")
    steps = rows.select(
        "tenant", "ev", "carried", "us", ended.alias("ended"),
        F.lag("ev").over(life).alias("ev_before"),
        F.lag("us").over(life).alias("us_before"),
        F.max(F.when(F.col("ev") == "session_created", F.col("us"))).over(life).alias("born"),
    ).where(~F.col("carried"))  # fmt: skip
    away = steps.where(
        (F.col("ev_before") == "session_disconnected") & (F.col("ev") != "session_disconnected")
    ).select(
        F.lit("offline").alias("kind"), "tenant", (F.col("us") - F.col("us_before")).alias("t")
    )
    ages = steps.where(F.col("ended") & F.col("born").isNotNull()).select(
        F.lit("age").alias("kind"), "tenant", (F.col("us") - F.col("born")).alias("t")
    )
    return (
        away.unionByName(ages)
        .groupBy("kind", "tenant", bucket_of(F.col("t")).alias("bucket"))
        .agg(F.count(F.lit(1)).alias("count"))
    )


def still_there(view: View) -> DataFrame:
    """Return the rows at which the absences and ages of sessions that still exist begin."""
    rows = view.sessions.where(F.col("ev").isin(*_LIVES))
    life = Window.partitionBy("node", "session")
    ends = F.col("ev").isin("session_expired", "session_terminated")
    marked = rows.withColumn("ended", F.max(ends).over(life)).withColumn(
        "is_last", F.col("gseq") == F.max("gseq").over(life)
    )
    begins = (F.col("ev") == "session_created") | (
        (F.col("ev") == "session_disconnected") & F.col("is_last")
    )
    return marked.where(begins & ~F.col("ended")).drop("ended", "is_last")


def clients(view: View, fan_out: DataFrame | None) -> DataFrame:
    """Return the counts of each client: connects, takeovers, lost connections, messages, bytes.

    `deliveries` (deliveries of its messages) is null if `fan_out` is None.
    """
    came = view.sessions.where(
        ~F.col("carried")
        & F.col("ev").isin("session_created", "session_resumed", "session_taken_over",
                           "session_disconnected")
    ).groupBy("tenant", "client_id").agg(
        _times(F.col("ev").isin("session_created", "session_resumed")).alias("connects"),
        _times(F.col("ev") == "session_taken_over").alias("takeovers"),
        _times((F.col("ev") == "session_disconnected") & (F.col("reason") == LOST)).alias("lost"),
    )  # fmt: skip
    said = (
        view.of("msg_accepted", columns=("carried", "tenant", "client_id", "bytes"))
        .groupBy("tenant", "client_id")  # carried rows too: their messages are delivered now
        .agg(
            _times(~F.col("carried")).alias("messages"),
            F.sum(F.when(~F.col("carried"), F.coalesce("bytes", F.lit(0)).cast("long"))).alias(
                "total_bytes"
            ),
        )
        .withColumn("client", client_code())
    )
    if fan_out is not None:
        said = said.join(fan_out, "client", "left")
    else:
        said = said.withColumn("deliveries", F.lit(None).cast("long"))
    both = came.unionByName(said.drop("client"), allowMissingColumns=True)
    return both.groupBy(
        F.coalesce("tenant", F.lit("")).alias("tenant"),
        F.coalesce("client_id", F.lit("")).alias("client_id"),
    ).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name)
          for name in ("connects", "takeovers", "lost", "messages", "total_bytes")),
        F.sum("deliveries").alias("deliveries"),
    )  # fmt: skip


def _times(condition: Column) -> Column:
    return F.sum(F.coalesce(condition, F.lit(False)).cast("long"))


def moves(view: View) -> DataFrame:
    """Return (minute, tenant, connects, ends, lost): connections by minute.

    Connections that ended by a crash of the broker are not counted: crashes are shown elsewhere.
    """
    rows = view.sessions.where(
        ~F.col("carried")
        & F.col("ev").isin("session_created", "session_resumed", "session_disconnected")
        & (F.coalesce("reason", F.lit(0)) != CRASHED)
    )
    return rows.groupBy(
        minute_of(F.col("ts")).alias("minute"), F.coalesce("tenant", F.lit("")).alias("tenant")
    ).agg(
        _times(F.col("ev") != "session_disconnected").alias("connects"),
        _times(F.col("ev") == "session_disconnected").alias("ends"),
        _times(F.col("reason") == LOST).alias("lost"),
    )


def drops(view: View) -> DataFrame:
    """Return (tenant, reason, count) of dropped messages."""
    rows = view.of("msg_dropped", columns=("carried", "tenant", "reason", "count"))
    return (
        rows.where(~F.col("carried"))
        .groupBy(F.coalesce("tenant", F.lit("")).alias("tenant"), "reason")
        .agg(F.sum(F.coalesce("count", F.lit(1)).cast("long")).alias("count"))
    )


def retained(view: View) -> DataFrame:
    """Return (minute, topics, bytes), the changes of what is retained.

    A topic counts from its first message until it is cleared or expires; a later message changes
    only the bytes. Carried rows (`still_retained`) give what was retained when the batch began.
    """
    steps = _retained_steps(view)
    return (
        steps.where(~F.col("carried"))
        .groupBy("minute")
        .agg(
            F.sum(
                F.col("size").isNotNull().cast("long")
                - F.col("size_before").isNotNull().cast("long")
            ).alias("topics"),
            F.sum(F.coalesce("size", F.lit(0)) - F.coalesce("size_before", F.lit(0))).alias(
                "bytes"
            ),
        )
    )


def still_retained(view: View) -> DataFrame:
    """Return the places (node, gseq) of the rows that set the messages retained at the end."""
    steps = _retained_steps(view)
    return steps.where(F.col("later").isNull() & F.col("size").isNotNull()).select("node", "gseq")


def _retained_steps(view: View) -> DataFrame:
    rows = view.of(*RETAINED, columns=("carried", "ev", "node", "gseq", "ts", "topic", "bytes"))
    size = F.when(F.col("ev") == "retained_set", F.coalesce("bytes", F.lit(0)).cast("long"))
    here = rows.select(
        "node", "gseq", "carried",
        F.xxhash64("topic").alias("topic_code"),
        minute_of(F.col("ts")).alias("minute"),
        size.alias("size"),
    )  # fmt: skip
    topic = Window.partitionBy("node", "topic_code").orderBy("gseq")
    return here.select(
        "node", "gseq", "carried", "minute", "size",
        F.lag("size").over(topic).alias("size_before"),
        F.lead("gseq").over(topic).alias("later"),
    )  # fmt: skip


def clock_steps(view: View) -> DataFrame:
    """Return (at_us, node, detail) of wall-clock jumps that a broker saw."""
    rows = view.of("clock_step", columns=("carried", "node", "ts", "detail"))
    return rows.where(~F.col("carried")).select(
        F.unix_micros("ts").alias("at_us"), "node", F.coalesce("detail", F.lit("")).alias("detail")
    )


def names(view: View) -> DataFrame:
    """Return (node, session, tenant, client_id) of every session."""
    return view.sessions.select(
        "node", "session", F.coalesce("tenant", F.lit("")).alias("tenant"),
        F.coalesce("client_id", F.lit("")).alias("client_id"),
    ).distinct()  # fmt: skip
