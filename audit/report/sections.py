"""Sections of the report: broker uptime, books, times, backlogs, bills, oddities. Pure.

Every function decides what is said; templates write it (`audit.report.rendering`). A section
without numbers is a sentence, because "nothing was dropped" is a result, too.
"""

from collections.abc import Collection, Sequence
from typing import Final

from markupsafe import Markup

from audit.report import charts, nodes
from audit.report.charts import Mark, Series
from audit.report.rendering import render
from audit.report.summary import BOOK_LEVELS, MESSAGE_LEVELS, Histogram, Picture
from audit.report.text import compact, count, duration, plain, plural, size

_BARS_MAX: Final = 10
_FINDINGS_MAX: Final = 40
_BACKLOGS_MAX: Final = 6
_GAPS_MAX: Final = 20
_NODES_MAX: Final = 12
_BOOTS_MAX: Final = 60

# Kind of a finding -> its title.
KINDS: Final[dict[str, str]] = {
    "books": "Books do not balance",
    "clock_step": "The clock stepped",
    "flapping": "Flapping client",
    "growing_backlog": "Growing backlog",
    "mass_disconnect": "Mass disconnect",
    "one_client": "One client, most of the traffic",
    "unusual_hour": "Unusual hour",
}


def pictures(picture: Picture) -> Markup:
    """Return all sections below the invariants."""
    if not picture.events:
        return Markup("")
    cards = [
        _books(picture),
        _owed(picture),
        _latency(picture),
        _offline(picture),
        _backlogs(picture),
        _talkers(picture),
        _churn(picture),
        _drops(picture),
        _retained(picture),
        _bills(picture),
    ]
    return render("pictures", oddities=_oddities(picture), gaps=_gaps(picture), cards=cards)


def _card(title: str, body: Markup, *, lead: str = "", wide: bool = False) -> Markup:
    return render("card", title=title, body=body, lead=lead, wide=wide)


# -- uptime of the broker --------------------------------------------------------------------------


def lives(picture: Picture) -> Markup:
    """Draw when each broker ran, how each boot ended, and the gaps of the history."""
    if not picture.boots:
        return Markup("")
    begin = min(boot.began_us for boot in picture.boots)
    end = max(boot.ended_us for boot in picture.boots)
    names = sorted({boot.node for boot in picture.boots})
    return render(
        "lives",
        tracks=[_track(picture, node, begin, end) for node in names[:_NODES_MAX]],
        left=len(names) - _NODES_MAX,
        ticks=[
            (
                f"{share * 100:.2f}",
                (" odd" if i % 2 else "") + (" first" if share < 0.04 else ""),
                at,
            )
            for i, (share, at) in enumerate(charts.time_ticks(begin, end))
            if share <= 0.97
        ],
        ended=picture.restarts()[-_BOOTS_MAX:],
        marks=nodes.classes(picture),
    )


def _track(picture: Picture, node: str, begin: int, end: int) -> dict[str, object]:
    """Return where on the line of a broker what begins and ends, in percent."""
    span = max(end - begin, 1)
    boots = [boot for boot in picture.boots if boot.node == node]
    lived, ends, gaps = [], [], []
    for boot in boots[-_BOOTS_MAX:]:
        left = (boot.began_us - begin) / span * 100
        width = max((boot.ended_us - boot.began_us) / span * 100, 0.3)
        lived.append((f"{left:.2f}", f"{min(width, 100 - left):.2f}"))
        if boot.end != "open":
            ends.append((f"{left + width:.2f}", boot.end == "crash"))
    for gap in picture.gaps:
        if gap.node == node:
            left = max(0.0, (gap.from_us - begin) / span * 100)
            right = (end if gap.to_us is None else gap.to_us) - begin
            width = max(right / span * 100 - left, 0.4)
            gaps.append((f"{left:.2f}", f"{min(width, 100 - left):.2f}"))
    crashes = sum(boot.end == "crash" for boot in boots)
    return {
        "node": node,
        "words": f"{plural(len(boots), 'start')}, {plural(crashes, 'crash', 'crashes')}",
        "lives": lived,
        "ends": ends,
        "gaps": gaps,
    }


# -- findings and gaps -----------------------------------------------------------------------------


def _oddities(picture: Picture) -> Markup:
    findings = sorted(picture.findings, key=lambda finding: -finding.score)
    return render("oddities", findings=findings[:_FINDINGS_MAX], total=len(findings), kinds=KINDS)


def _gaps(picture: Picture) -> Markup:
    return render(
        "gaps",
        gaps=picture.gaps[:_GAPS_MAX],
        left=len(picture.gaps) - _GAPS_MAX,
        hidden=[check.id for check in picture.checks if check.outcome == "unknown"],
        marks=nodes.classes(picture),
    )


# -- books -----------------------------------------------------------------------------------------


def _marks(picture: Picture) -> list[Mark]:
    if not picture.minutes and not picture.owed:
        return []
    return [Mark(boot.ended_us, "crash", "crash") for boot in picture.boots if boot.end == "crash"]


def _crash_marks(picture: Picture, times: Sequence[int]) -> list[Mark]:
    if not times:
        return []
    end = times[-1] + picture.bin_s * 1_000_000
    marks = [mark for mark in _marks(picture) if times[0] <= mark.at_us <= end]
    # A single legend entry for all of them.
    return [
        Mark(mark.at_us, mark.tone, mark.text if i == 0 else "") for i, mark in enumerate(marks)
    ]


def _per_bin(picture: Picture) -> str:
    return "per minute" if picture.bin_s == 60 else f"per {duration(picture.bin_s)}"


def _nothing(picture: Picture, sentence: str, levels: Collection[str] = MESSAGE_LEVELS) -> str:
    """Return `sentence`, that nothing was found, or that the level of detail is too low for it."""
    recorded = picture.records(levels)
    if recorded == "none":
        least = "books or above" if "books" in levels else "full or sampled"
        return f"Not recorded: needs a history at level {least}."
    return sentence if recorded == "all" else f"{sentence.rstrip('.')}, in what was recorded."


def _books(picture: Picture) -> Markup:
    times = [minute.at_us for minute in picture.minutes]

    def stage(label: str, tone: str, key: str) -> Series:
        return Series(label, tone, [float(minute.stages.get(key, 0)) for minute in picture.minutes])

    expected = stage("acknowledgements owed", "expected", "ack_owed")
    gone = stage("", "", "unanswered")  # nobody was there to get them any more
    expected.values = [all - lost for all, lost in zip(expected.values, gone.values, strict=True)]
    done = stage("acknowledged", "ok", "pub_acked")
    all_owed, all_done = sum(expected.values), sum(done.values)
    per = _per_bin(picture)
    if not times:
        none = _nothing(picture, "No message was accepted.", BOOK_LEVELS)
        return _card("Books: promised to publishers", charts.empty(none), wide=True)
    if not all_owed and not all_done:
        accepted = stage("accepted", "ok", "accepted")
        return _card(
            "Books: promised to publishers",
            charts.over_time(
                times, [accepted], bin_s=picture.bin_s, unit=f"messages {per}",
                label=f"Messages accepted {per}.", marks=_crash_marks(picture, times),
            ),
            lead="No message asked for an acknowledgement.",
            wide=True,
        )  # fmt: skip
    missing = int(all_owed - all_done)
    if missing == 0:
        balance = "Every message that asked for an acknowledgement got one."
    else:
        balance = (
            f"{plural(abs(missing), 'acknowledgement')} {'missing' if missing > 0 else 'too many'}:"
            " refused, cut off by the end of the history or of a broker, or lost."
        )
    return _card(
        "Books: promised to publishers",
        charts.over_time(
            times, [done], step=expected, bin_s=picture.bin_s, unit=f"messages {per}",
            label=f"Acknowledgements owed to publishers and sent {per}. {balance}",
            marks=_crash_marks(picture, times),
        ),
        lead=f"{compact(all_owed)} owed, {compact(all_done)} sent. {balance}",
        wide=True,
    )  # fmt: skip


def _owed(picture: Picture) -> Markup:
    times = [minute.at_us for minute in picture.owed]
    if not times:
        return _card(
            "Books: owed to sessions",
            charts.empty(_nothing(picture, "Nothing was owed to a durable session.")),
            wide=True,
        )

    def stage(label: str, tone: str, key: str) -> Series:
        return Series(label, tone, [float(minute.stages.get(key, 0)) for minute in picture.owed])

    areas = [
        stage("delivered", "ok", "delivered"),
        stage("expired", "expired", "expired"),
        stage("dropped", "dropped", "dropped"),
        stage("ended with its session", "ended", "ended"),
        stage("still open", "open", "open"),
        stage("hidden by a gap", "hidden", "unknown"),
    ]
    areas = [series for i, series in enumerate(areas) if i == 0 or any(series.values)]
    expected = stage("owed", "expected", "owed")
    lost = sum(expected.values) - sum(sum(series.values) for series in areas)
    per = _per_bin(picture)
    balance = (
        "Each one is accounted for."
        if lost == 0
        else f"{plural(int(lost), 'delivery', 'deliveries')} not accounted for: lost."
    )
    return _card(
        "Books: owed to sessions",
        charts.over_time(
            times, areas, step=expected, bin_s=picture.bin_s, unit=f"deliveries {per}",
            label=f"Deliveries owed to durable sessions {per}, by what became of them. {balance}",
            marks=_crash_marks(picture, times),
        ),
        lead=f"{compact(sum(expected.values))} owed by the minute they were stored. {balance}",
        wide=True,
    )  # fmt: skip


# -- times -----------------------------------------------------------------------------------------


def _quantiles(durations: Histogram) -> str:
    values = [durations.quantile_ms(share) for share in (0.5, 0.99)]
    if values[0] is None or values[1] is None:
        return ""
    return f"half within {duration(values[0] / 1000)}, 99 % within {duration(values[1] / 1000)}"


def _latency(picture: Picture) -> Markup:
    body = charts.histogram(
        picture.latency,
        label=f"How long sessions took to acknowledge: {_quantiles(picture.latency) or 'no data'}.",
        tone="ok",
        unit="deliveries",
    )
    slow = [
        (each, duration((each.latency.quantile_ms(0.5) or 0) / 1000)) for each in picture.slow[:5]
    ]
    lead = f"{compact(picture.latency.total)} acknowledged: {_quantiles(picture.latency)}."
    body = render("latency", chart=body, slow=slow, again=_sent_again(picture))
    return _card("From stored to acknowledged", body, lead=lead if picture.latency.total else "")


def _sent_again(picture: Picture) -> str:
    first = sum(minute.stages.get("delivered", 0) for minute in picture.minutes)
    again = sum(minute.stages.get("redelivered", 0) for minute in picture.minutes)
    if not first and not again:
        return _nothing(picture, "Nothing was sent to a session.", BOOK_LEVELS)
    if not again:
        return f"Of {plural(first, 'delivery', 'deliveries')} none was sent again."
    share = again / max(first, 1)
    return f"Sent again: {plural(again, 'delivery', 'deliveries')}, {share:.2%} of {count(first)}."


def _offline(picture: Picture) -> Markup:
    body = charts.histogram(
        picture.offline,
        label=f"How long sessions were away: {_quantiles(picture.offline) or 'no data'}.",
        tone="away",
        unit="absences",
    )
    if picture.ages.total:
        ages = charts.histogram(
            picture.ages,
            label=f"How old sessions became: {_quantiles(picture.ages)}.",
            tone="age",
            unit="sessions",
        )
        body += Markup("<h4>How old sessions became</h4>") + ages
    lead = f"{plural(picture.offline.total, 'absence')}: {_quantiles(picture.offline)}."
    return _card("Time away", body, lead=lead if picture.offline.total else "")


def _backlogs(picture: Picture) -> Markup:
    shown = [backlog for backlog in picture.backlogs if backlog.points][:_BACKLOGS_MAX]
    if not shown:
        body = charts.empty(_nothing(picture, "No session had a backlog."))
        return _card("Backlogs", body, wide=True)
    begin = min(backlog.points[0][0] for backlog in shown)
    end = max(max(backlog.points[-1][0] for backlog in shown), begin + 1)
    curves = []
    for backlog in shown:
        last = backlog.points[-1][1]
        curve = charts.spark(
            backlog.points, begin=begin, end=end, top=backlog.worst,
            tone="violated" if backlog.growth > 0 and last == backlog.worst else "open",
        )  # fmt: skip
        curves.append((backlog, curve, last))
    return _card(
        "Backlogs: the sessions that were owed most",
        render("backlogs", curves=curves),
        lead="Messages owed and not done, each curve to its own scale, all over the same time.",
        wide=True,
    )


# -- who and how much ------------------------------------------------------------------------------


def _who(tenant: str, client_id: str) -> Markup:
    return render("who", tenant=tenant, client_id=client_id)


def _bars(rows: Sequence[tuple[str, float, Markup]], tone: str) -> Markup:
    """Return horizontal bars; rows are (label, value, text beside the bar)."""
    top = max((value for _, value, _ in rows), default=0) or 1
    shown = [
        {"label": label, "text": text, "width": f"{max(value / top * 100, 0.4):.1f}"}
        for label, value, text in rows[:_BARS_MAX]
    ]
    return render("bars", rows=shown, tone=tone)


def _strong(number: str, rest: str) -> Markup:
    return Markup("<b>{}</b>{}").format(number, rest)


def _talkers(picture: Picture) -> Markup:
    if not picture.talkers:
        return _card("Top talkers", charts.empty(_nothing(picture, "Nobody published.")))
    rows = []
    for talker in picture.talkers:
        fan_out = talker.fan_out
        spread = "" if fan_out is None else f", each to {compact(fan_out)}"
        noun = f" message{'s' * (talker.messages != 1)}"
        told = _strong(compact(talker.messages), f"{noun}, {size(talker.total_bytes)}{spread}")
        rows.append((_who(talker.tenant, talker.client_id), float(talker.messages), told))
    return _card("Top talkers", _bars(rows, "ok"))


def _drops(picture: Picture) -> Markup:
    rows = [
        (plain(drop.reason).replace("_", " "), float(drop.count), _strong(count(drop.count), ""))
        for drop in sorted(picture.drops, key=lambda drop: -drop.count)
    ]
    body = (
        _bars(rows, "dropped")
        if rows
        else charts.empty(_nothing(picture, "Nothing was dropped.", BOOK_LEVELS))
    )
    waste = (
        f"{plural(picture.expired, 'delivery', 'deliveries')} expired before they were received, "
        f"{size(picture.expired_bytes)} stored for nothing."
        if picture.expired
        else _nothing(picture, "Nothing expired unread.", BOOK_LEVELS)
    )
    return _card("Dropped and expired", body + Markup('<p class="soft">{}</p>').format(waste))


def _retained(picture: Picture) -> Markup:
    if not picture.retained:
        return _card("Retained messages", charts.empty("No retained message was set or cleared."))
    last, total = picture.retained[-1][1:]
    growth = last - picture.retained[0][1]
    times, topics = _held(picture.retained, picture.bin_s * 1_000_000)
    body = charts.over_time(
        times, [Series("topics", "retained", topics)],
        bin_s=picture.bin_s, unit="retained topics",
        label=f"Retained topics over time, {count(last)} at the end.",
    )  # fmt: skip
    return _card(
        "Retained messages",
        body,
        lead=f"{plural(last, 'topic')} at the end, {size(total)}; "
        f"{'grew' if growth >= 0 else 'shrank'} by {count(abs(growth))}.",
    )


def _held(levels: Sequence[tuple[int, int, int]], bin_us: int) -> tuple[list[int], list[float]]:
    """Return every bin from the first level to the last; a level holds until the next one."""
    times, values = [], []
    following = [at for at, _, _ in levels[1:]] + [levels[-1][0] + bin_us]
    for (at, number, _), end in zip(levels, following, strict=True):
        for moment in range(at, end, bin_us):
            times.append(moment)
            values.append(float(max(number, 0)))
    return times, values


def _churn(picture: Picture) -> Markup:
    if not picture.churn:
        return _card("Coming and going", charts.empty("Nobody connected."))
    rows = []
    for churn in picture.churn:
        rest = f" connect{'s' * (churn.connects != 1)}"
        if churn.takeovers:
            rest += f", {compact(churn.takeovers)} takeover{'s' * (churn.takeovers != 1)}"
        if churn.lost:
            rest += f", {compact(churn.lost)} lost"
        label = _who(churn.tenant, churn.client_id)
        rows.append((label, float(churn.connects), _strong(compact(churn.connects), rest)))
    return _card("Coming and going", _bars(rows, "away"))


def _bills(picture: Picture) -> Markup:
    if not picture.bills:
        return Markup("")
    bills = sorted(picture.bills, key=lambda bill: -bill.byte_hours)
    shown = bills[: 2 * _BARS_MAX]
    hours = sorted({hour for bill in shown for hour, _ in bill.hours})
    rows = []
    for bill in shown:
        curve = Markup("")
        if len(hours) > 1 and bill.hours:
            top = max(value for _, value in bill.hours)
            points = [(hour, round(value / (top or 1) * 1000)) for hour, value in bill.hours]
            curve = charts.spark(
                points, begin=hours[0], end=hours[-1] + 3_600_000_000, top=1000, tone="retained"
            )
        rows.append((bill, curve))
    return _card(
        "Storage bill by tenant",
        render("bills", rows=rows, total=len(bills)),
        lead="Stored: bytes owed to sessions, times the hours until they were done.",
        wide=True,
    )
