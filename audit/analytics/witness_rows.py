"""The rows around the witnesses of a run, for their stories: one Spark job, and bounded.

The rows of the message come first, then what the session did otherwise, nearest to the place of the
finding, then starts and ends of the broker and other sessions with the message. Read next:
`audit.report.stories`.
"""

import json
from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from audit.checks.verdict import Outcome
from audit.files import join, list_files, read_text, write_text
from audit.input.batch_view import View
from audit.report import stories
from audit.report.stories import Focus
from audit.report.summary import Story
from audit.spark import frame_of
from storage.history.events import COLUMNS

FOLDER: Final = "stories"
OF_THE_BROKER: Final = ("boot", "shutdown", "recovered", "history_gap", "clock_step")
# What happened to a message before it was anybody's.
INCOMING: Final = ("msg_accepted", "msg_persisted", "pub_acked", "msg_enqueued", "will_fired")
NEAR: Final = 5  # rows before and after a place
_SCHEMA: Final = "number long, f_node string, f_msg long, f_session long, f_place long"


def write(view: View, outcomes: Sequence[Outcome], out_dir: str, batch: int) -> None:
    """Write the stories of a batch; Spark works only if something is violated."""
    found = {o.invariant: o.witnesses for o in outcomes if o.status == "violated"}
    told = tell(view, stories.chosen(found))
    text = json.dumps(stories.as_json(told), ensure_ascii=False)
    write_text(view.spark, _place(out_dir, batch), text)


def read(spark: SparkSession, out_dir: str, batch: int) -> list[Story]:
    """Return the stories that a batch has written; none if it was asked for a verdict only."""
    name = f"batch-{batch:08}.json"
    if not list_files(spark, join(out_dir, FOLDER), name):
        return []
    return stories.of_json(json.loads(read_text(spark, _place(out_dir, batch))))


def tell(view: View, foci: Sequence[Focus]) -> list[Story]:
    """Return the story of each focus that has rows."""
    if not foci:
        return []
    given = [(at, f.node, f.msg, f.session, f.place) for at, f in enumerate(foci)]
    wanted = F.broadcast(frame_of(view.spark, given, _SCHEMA))
    rows = view.events if view.traced is None else view.traced
    is_near = F.coalesce(F.abs(F.col("gseq") - F.col("f_place")) <= NEAR, F.lit(False))
    of_message = F.coalesce(F.col("msg") == F.col("f_msg"), F.lit(False))
    of_session = F.coalesce(F.col("session") == F.col("f_session"), F.lit(False))
    of_anybody = F.isnull("f_session") | F.isnull("session") | F.col("ev").isin(*INCOMING)
    of_both = of_message & (of_session | of_anybody)
    of_place = F.isnull("f_msg") & F.isnull("f_session") & is_near
    of_broker = F.col("ev").isin(*OF_THE_BROKER)
    rank = (
        F.when(of_both | of_place | (F.col("gseq") == F.col("f_place")), 0)
        .when(of_session & (F.isnull("msg") | is_near), 1)
        .when(of_message | of_broker, 2)
        .when(of_session, 3)
    )
    joined = rows.join(wanted, (F.col("node") == F.col("f_node")) & F.isnotnull(rank))
    each = Window.partitionBy("number")
    anchor = F.coalesce("f_place", F.max(F.when(of_both, F.col("gseq"))).over(each), F.lit(0))
    distance = F.abs(F.col("gseq") - anchor)
    best = F.row_number().over(each.orderBy(rank, distance, "gseq"))
    kept = joined.select(
        *(name for name, _ in COLUMNS if name not in ("ts", "at", "bin")),
        F.unix_micros("ts").alias("at_us"),
        "number",
        best.alias("best"),
        F.count(F.lit(1)).over(each).alias("total"),
    ).where(F.col("best") <= stories.ROWS_MAX)
    found = [row.asDict() for row in kept.collect()]
    return [
        stories.told(focus, mine, int(mine[0]["total"]))
        for at, focus in enumerate(foci)
        if (mine := [row for row in found if row["number"] == at])
    ]


def _place(out_dir: str, batch: int) -> str:
    return join(out_dir, FOLDER, f"batch-{batch:08}.json")
