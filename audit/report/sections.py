"""Sections of the report: broker uptime, books, times, backlogs, bills, oddities. Pure.

Every function returns HTML with all names escaped (`audit.report.text`). A section without numbers
is a sentence, because "nothing was dropped" is a result, too.
"""

from collections.abc import Collection, Sequence
from html import escape
from typing import Final

from audit.report import charts
from audit.report.charts import Mark, Series
from audit.report.summary import BOOK_LEVELS, MESSAGE_LEVELS, Boot, Finding, Gap, Histogram, Picture
from audit.report.text import compact, count, duration, name, plural, size, visible, when

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


def pictures(picture: Picture) -> str:
    """Return all sections below the invariants."""
    if not picture.events:
        return ""
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
    return (
        f"{_oddities(picture)}{_gaps(picture)}"
        '<section aria-labelledby="numbers-title"><h2 id="numbers-title">What went on</h2>'
        f'<div class="cards">{"".join(cards)}</div></section>'
    )


def _card(title: str, body: str, *, lead: str = "", wide: bool = False) -> str:
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return (
        f'<article class="card{" wide" if wide else ""}"><h3>{escape(title)}</h3>{lead}{body}'
        "</article>"
    )


# -- uptime of the broker --------------------------------------------------------------------------


def lives(picture: Picture) -> str:
    """Draw when each broker ran, how each boot ended, and the gaps of the history."""
    if not picture.boots:
        return ""
    begin = min(boot.began_us for boot in picture.boots)
    end = max(boot.ended_us for boot in picture.boots)
    nodes = sorted({boot.node for boot in picture.boots})
    tracks = "".join(_track(picture, node, begin, end) for node in nodes[:_NODES_MAX])
    more = (
        f'<p class="soft">and {plural(len(nodes) - _NODES_MAX, "more broker")}</p>'
        if len(nodes) > _NODES_MAX
        else ""
    )
    ticks = "".join(
        f'<span class="x{" odd" if i % 2 else ""}{" first" if share < 0.04 else ""}" '
        f'style="left:{share * 100:.2f}%">{text}</span>'
        for i, (share, text) in enumerate(charts.time_ticks(begin, end))
        if share <= 0.97
    )
    key = (
        '<ul class="key"><li><span class="dot life"></span>running</li>'
        '<li class="violated"><span class="sign">✕</span>crash</li>'
        '<li class="soft"><span class="sign">■</span>clean stop</li>'
        '<li><span class="dot hatch"></span>gap in the history</li></ul>'
    )
    return (
        '<section class="lives" aria-labelledby="lives-title"><h2 id="lives-title">'
        "Lives of the broker</h2>"
        f'<div class="card"><div class="tracks">{tracks}<div class="axis" aria-hidden="true">'
        f"{ticks}</div></div>{key}{more}{_deaths(picture.restarts())}</div></section>"
    )


def _track(picture: Picture, node: str, begin: int, end: int) -> str:
    span = max(end - begin, 1)
    parts = []
    boots = [boot for boot in picture.boots if boot.node == node]
    for boot in boots[-_BOOTS_MAX:]:
        left = (boot.began_us - begin) / span * 100
        width = max((boot.ended_us - boot.began_us) / span * 100, 0.3)
        parts.append(
            f'<i class="life" style="left:{left:.2f}%;width:{min(width, 100 - left):.2f}%"></i>'
        )
        if boot.end != "open":
            tone, sign = ("crash", "✕") if boot.end == "crash" else ("stop", "■")
            parts.append(f'<b class="end {tone}" style="left:{left + width:.2f}%">{sign}</b>')
    for gap in picture.gaps:
        if gap.node == node:
            left = max(0.0, (gap.from_us - begin) / span * 100)
            right = (end if gap.to_us is None else gap.to_us) - begin
            width = max(right / span * 100 - left, 0.4)
            parts.append(
                f'<i class="gap" style="left:{left:.2f}%;width:{min(width, 100 - left):.2f}%"></i>'
            )
    crashes = sum(boot.end == "crash" for boot in boots)
    words = f"{plural(len(boots), 'start')}, {plural(crashes, 'crash', 'crashes')}"
    return (
        f'<div class="track"><p>{name(node, empty="broker")} <span class="soft">{words}</span></p>'
        f'<div class="line" aria-hidden="true">{"".join(parts)}</div></div>'
    )


def _deaths(ended: Sequence[Boot]) -> str:
    """Return the table of ends: how much had to survive each, and whether it did."""
    if not ended:
        return ""
    rows = []
    for boot in ended[-_BOOTS_MAX:]:
        if boot.lost:
            fate = f'<span class="violated">✕ {plural(boot.lost, "session")} not as before</span>'
        elif boot.sessions_before is None:
            fate = '<span class="unknown">not known</span>'
        elif not boot.sessions_before:
            fate = '<span class="soft">no session to survive it</span>'
        else:
            fate = '<span class="ok">✓ all there</span>'
        before = "" if boot.sessions_before is None else count(boot.sessions_before)
        after = "" if boot.sessions_after is None else count(boot.sessions_after)
        how = "crash" if boot.end == "crash" else "clean stop"
        rows.append(
            f'<tr><th scope="row">{when(boot.ended_us)}</th><td>{fate}</td>'
            f'<td class="number">{before}</td><td class="number">{after}</td><td>{how}</td>'
            f'<td>{name(boot.node)}</td><td class="number">{boot.boot}</td></tr>'
        )
    heads = ("Time (UTC)", "Survived", "Sessions before", "After", "Ended by", "Broker", "Start")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Ends of the broker\'s lives">'
        f'<table class="deaths"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


# -- findings and gaps -----------------------------------------------------------------------------


def _oddities(picture: Picture) -> str:
    findings = sorted(picture.findings, key=lambda finding: -finding.score)
    if not findings:
        body = charts.empty("Nothing out of the ordinary.")
    else:
        items = "".join(_finding(finding) for finding in findings[:_FINDINGS_MAX])
        more = (
            f'<p class="soft">The {_FINDINGS_MAX} oddest of {count(len(findings))}; '
            "all are in <code>findings/</code>.</p>"
            if len(findings) > _FINDINGS_MAX
            else ""
        )
        body = f'<ul class="findings">{items}</ul>{more}'
    return (
        '<section aria-labelledby="odd-title"><h2 id="odd-title">Worth a look</h2>'
        f'<p class="soft">No invariant forbids these. Each is named with its reason.</p>{body}'
        "</section>"
    )


def _finding(finding: Finding) -> str:
    at = when(finding.at_us) if finding.at_us is not None else ""
    who = " · ".join(name(text) for text in (finding.tenant, finding.subject) if text)
    kind = KINDS.get(finding.kind, finding.kind.replace("_", " "))
    return (
        f'<li><b>{escape(visible(kind))}</b><span class="who">{who}</span>'
        f'<span class="why">{escape(visible(finding.reason))}</span>'
        f'<span class="soft at">{at}</span></li>'
    )


def _gaps(picture: Picture) -> str:
    hidden = [check.id for check in picture.checks if check.outcome == "unknown"]
    if not picture.gaps:
        body = charts.empty("The history has no gaps.")
    else:
        items = "".join(_gap(gap) for gap in picture.gaps[:_GAPS_MAX])
        more = (
            f'<p class="soft">and {plural(len(picture.gaps) - _GAPS_MAX, "more gap")}</p>'
            if len(picture.gaps) > _GAPS_MAX
            else ""
        )
        body = f'<ul class="findings">{items}</ul>{more}'
    links = ", ".join(f'<a href="#{escape(id)}">{escape(id)}</a>' for id in hidden)
    told = (
        '<p class="soft">Cannot be told because of gaps, open ends or the level of detail: '
        f"{links}.</p>"
        if hidden
        else ""
    )
    return (
        '<section aria-labelledby="gaps-title"><h2 id="gaps-title">Gaps, and what they hide</h2>'
        f"{told}{body}</section>"
    )


def _gap(gap: Gap) -> str:
    if gap.to_us is None:
        until = "still open at the end"
    else:
        until = f"for {duration((gap.to_us - gap.from_us) / 1e6)}"
    number = "" if gap.count is None else f", {plural(gap.count, 'event')} not recorded"
    return (
        f"<li><b>{escape(visible(gap.reason).replace('_', ' '))}</b>"
        f'<span class="who">{name(gap.node, empty="broker")} · start {gap.boot}</span>'
        f'<span class="why">{until}{number}. {escape(visible(gap.detail))}</span>'
        f'<span class="soft at">{when(gap.from_us)}</span></li>'
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


def _books(picture: Picture) -> str:
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


def _owed(picture: Picture) -> str:
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


def _latency(picture: Picture) -> str:
    body = charts.histogram(
        picture.latency,
        label=f"How long sessions took to acknowledge: {_quantiles(picture.latency) or 'no data'}.",
        tone="ok",
        unit="deliveries",
    )
    if picture.slow:
        rows = "".join(
            f'<li><span class="name">{_who(slow.tenant, slow.client_id)}</span>'
            f"<b>{duration((slow.latency.quantile_ms(0.5) or 0) / 1000)}</b>"
            f'<span class="soft">half of {compact(slow.latency.total)}</span></li>'
            for slow in picture.slow[:5]
        )
        body += f'<h4>Slowest consumers</h4><ol class="list">{rows}</ol>'
    lead = f"{compact(picture.latency.total)} acknowledged: {_quantiles(picture.latency)}."
    body += f'<p class="soft again">{_sent_again(picture)}</p>'
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


def _offline(picture: Picture) -> str:
    body = charts.histogram(
        picture.offline,
        label=f"How long sessions were away: {_quantiles(picture.offline) or 'no data'}.",
        tone="away",
        unit="absences",
    )
    if picture.ages.total:
        body += "<h4>How old sessions became</h4>" + charts.histogram(
            picture.ages,
            label=f"How old sessions became: {_quantiles(picture.ages)}.",
            tone="age",
            unit="sessions",
        )
    lead = f"{plural(picture.offline.total, 'absence')}: {_quantiles(picture.offline)}."
    return _card("Time away", body, lead=lead if picture.offline.total else "")


def _backlogs(picture: Picture) -> str:
    shown = [backlog for backlog in picture.backlogs if backlog.points][:_BACKLOGS_MAX]
    if not shown:
        body = charts.empty(_nothing(picture, "No session had a backlog."))
        return _card("Backlogs", body, wide=True)
    begin = min(backlog.points[0][0] for backlog in shown)
    end = max(max(backlog.points[-1][0] for backlog in shown), begin + 1)
    items = []
    for backlog in shown:
        last = backlog.points[-1][1]
        curve = charts.spark(
            backlog.points, begin=begin, end=end, top=backlog.worst,
            tone="violated" if backlog.growth > 0 and last == backlog.worst else "open",
        )  # fmt: skip
        items.append(
            f'<li><p class="name">{_who(backlog.tenant, backlog.client_id)}</p>{curve}'
            f'<p class="soft">up to <b>{count(backlog.worst)}</b>, at the end '
            f"<b>{count(last)}</b></p></li>"
        )
    return _card(
        "Backlogs: the sessions that were owed most",
        f'<ul class="sparks">{"".join(items)}</ul>',
        lead="Messages owed and not done, each curve to its own scale, all over the same time.",
        wide=True,
    )


# -- who and how much ------------------------------------------------------------------------------


def _who(tenant: str, client_id: str) -> str:
    who = name(client_id, empty="(empty client id)")
    return f'{who} <span class="soft">{name(tenant)}</span>' if tenant else who


def _bars(rows: Sequence[tuple[str, float, str]], tone: str) -> str:
    """Return horizontal bars; rows are (label as HTML, value, text beside the bar)."""
    top = max((value for _, value, _ in rows), default=0) or 1
    items = "".join(
        f'<li><span class="name">{label}</span><span class="soft">{text}</span>'
        f'<span class="bar" aria-hidden="true"><i class="{tone}" '
        f'style="width:{max(value / top * 100, 0.4):.1f}%"></i></span></li>'
        for label, value, text in rows[:_BARS_MAX]
    )
    return f'<ol class="bars">{items}</ol>'


def _talkers(picture: Picture) -> str:
    if not picture.talkers:
        return _card("Top talkers", charts.empty(_nothing(picture, "Nobody published.")))
    rows = []
    for talker in picture.talkers:
        fan_out = talker.fan_out
        spread = "" if fan_out is None else f", each to {compact(fan_out)}"
        noun = f"message{'s' * (talker.messages != 1)}"
        text = f"<b>{compact(talker.messages)}</b> {noun}, {size(talker.total_bytes)}{spread}"
        rows.append((_who(talker.tenant, talker.client_id), float(talker.messages), text))
    return _card("Top talkers", _bars(rows, "ok"))


def _drops(picture: Picture) -> str:
    rows = [
        (
            escape(visible(drop.reason).replace("_", " ")),
            float(drop.count),
            f"<b>{count(drop.count)}</b>",
        )
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
    return _card("Dropped and expired", f'{body}<p class="soft">{waste}</p>')


def _retained(picture: Picture) -> str:
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


def _churn(picture: Picture) -> str:
    if not picture.churn:
        return _card("Coming and going", charts.empty("Nobody connected."))
    rows = []
    for churn in picture.churn:
        parts = [f"<b>{compact(churn.connects)}</b> connect{'s' * (churn.connects != 1)}"]
        if churn.takeovers:
            parts.append(f"{compact(churn.takeovers)} takeover{'s' * (churn.takeovers != 1)}")
        if churn.lost:
            parts.append(f"{compact(churn.lost)} lost")
        label = _who(churn.tenant, churn.client_id)
        rows.append((label, float(churn.connects), ", ".join(parts)))
    return _card("Coming and going", _bars(rows, "away"))


def _bills(picture: Picture) -> str:
    if not picture.bills:
        return ""
    bills = sorted(picture.bills, key=lambda bill: -bill.byte_hours)
    shown = bills[: 2 * _BARS_MAX]
    hours = sorted({hour for bill in shown for hour, _ in bill.hours})
    rows = []
    for bill in shown:
        spark = ""
        if len(hours) > 1 and bill.hours:
            top = max(value for _, value in bill.hours)
            points = [(hour, round(value / (top or 1) * 1000)) for hour, value in bill.hours]
            spark = charts.spark(
                points, begin=hours[0], end=hours[-1] + 3_600_000_000, top=1000, tone="retained"
            )
        rows.append(
            f'<tr><th scope="row">{name(bill.tenant, empty="(no tenant)")}</th>'
            f'<td class="number">{count(bill.accepted)}</td>'
            f'<td class="number">{size(bill.total_bytes)}</td>'
            f'<td class="number">{count(bill.delivered)}</td>'
            f'<td class="number">{count(bill.dropped)}</td>'
            f'<td class="number"><b>{size(bill.byte_hours)}·h</b></td><td>{spark}</td></tr>'
        )
    heads = ("Tenant", "Accepted", "Payload", "Delivered", "Dropped", "Stored", "By the hour")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    more = (
        f'<p class="soft">The {len(shown)} largest of {count(len(bills))} tenants.</p>'
        if len(bills) > len(shown)
        else ""
    )
    return _card(
        "Storage bill by tenant",
        '<div class="scroll" tabindex="0" role="region" aria-label="Storage bill by tenant">'
        f'<table class="bills"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{more}",
        lead="Stored: bytes owed to sessions, times the hours until they were done.",
        wide=True,
    )
