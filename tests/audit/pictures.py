"""Pictures for the tests of the report: empty, tiny, busy, violated and hostile ones."""

import math
from typing import Literal

from audit.checks.verdict import INVARIANTS, OF_CLIENTS
from audit.input.coverage import TESTED
from audit.report.summary import (
    Backlog,
    Bill,
    Boot,
    Check,
    Churn,
    Covered,
    Drop,
    Finding,
    Gap,
    Histogram,
    Minute,
    Picture,
    Run,
    Slow,
    Story,
    Suppression,
    Talker,
    Told,
)

MINUTE = 60_000_000
HOUR = 60 * MINUTE
BEGIN = 1_793_520_000_000_000  # 2026-11-01 08:00 UTC

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><b>&amp;'\u202e\x00\n"


def checks() -> list[Check]:
    """Return all invariants, each checked a thousand times and true."""
    return [
        Check(
            invariant.id,
            invariant.title,
            invariant.title.capitalize(),
            "ok",
            checked=1000,
            tested_by=TESTED[invariant.needs],
        )
        for invariant in INVARIANTS.values()
        if invariant.id not in OF_CLIENTS
    ]


def recorded(node: str, *spans: tuple[int, str], sample: int = 1) -> list[Covered]:
    """Return the coverage of a broker: (minutes, what was recorded) one after the other."""
    found, at = [], BEGIN
    reasons = {"sessions": "detail books", "lowered": "detail sampled", "nothing": "outbox_trimmed"}
    for minutes, what in spans:
        end = at + minutes * MINUTE
        found.append(Covered(node, at, end, what, reasons.get(what, ""), sample))
        at = end
    return found


def empty() -> Picture:
    """Return the picture of a history without an event."""
    return Picture("/var/lib/history", "ok", checks=[], made_us=BEGIN)


def tiny() -> Picture:
    """Return the picture of a boot, a client and one message."""
    boot = Boot("a", 1, BEGIN, BEGIN + 3_000_000, "open")
    return Picture(
        "history", "ok", checks(), BEGIN + MINUTE, BEGIN, BEGIN + 3_000_000, events=12, segments=1,
        seconds=4.2, details=["full"], boots=[boot], coverage=recorded("a", (1, "full")),
        minutes=[Minute(BEGIN, {"accepted": 1, "ack_owed": 1, "pub_acked": 1})],
        owed=[Minute(BEGIN, {"owed": 1, "delivered": 1})],
        latency=Histogram({3: 1}),
        talkers=[Talker("", "sensor", 1, 20, 1)],
        churn=[Churn("", "sensor", 1, 0, 0)],
        bills=[Bill("", 1, 20, 1, 0, 0.0001)],
    )  # fmt: skip


def lives(ends: list[int]) -> list[Boot]:
    """Return boots that end after so many minutes, the second in peace, and one that still runs."""
    boots = []
    start = BEGIN
    for number, minutes in enumerate(ends, 1):
        end = BEGIN + minutes * MINUTE
        how: Literal["clean", "crash"] = "clean" if number == 2 else "crash"
        boots.append(Boot("holdfast-1", number, start, end, how, 4136 + number, 4136 + number))
        start = end + MINUTE // 2
    boots.append(Boot("holdfast-1", len(ends) + 1, start, BEGIN + 240 * MINUTE, "open"))
    return boots


def busy() -> Picture:
    """Return the picture of a morning with three crashes that everything survived."""
    boots = lives([55, 131, 133, 200])
    minutes, owed = [], []
    for i in range(240):
        level = int(900 + 500 * math.sin(i / 37) + 130 * math.sin(i / 3.1) + (i % 7) * 15)
        at = BEGIN + i * MINUTE
        minutes.append(Minute(at, {"accepted": level + 100, "ack_owed": level, "pub_acked": level}))
        expired, dropped = (level // 40 if 90 < i < 120 else 0), (level // 25 if i > 190 else 0)
        still_open = level // 9 if i > 228 else 0
        owed.append(
            Minute(at, {
                "owed": 2 * level, "expired": expired, "dropped": dropped, "open": still_open,
                "delivered": 2 * level - expired - dropped - still_open,
            })
        )  # fmt: skip
    latency = {b: int(90_000 * math.exp(-(((b - 5) / 4) ** 2))) for b in range(-8, 24)}
    latency |= {b: 400 - 8 * (b - 24) for b in range(24, 44)}
    offline = {b: int(700 * math.exp(-(((b - 31) / 6) ** 2))) for b in range(16, 50)}
    ages = {b: int(200 * math.exp(-(((b - 44) / 5) ** 2))) for b in range(24, 52)}
    return Picture(
        "/var/lib/holdfast/history", "ok", checks(), BEGIN + 5 * HOUR, BEGIN, BEGIN + 4 * HOUR,
        events=9_954_332, segments=241, seconds=96.0, details=["full"], boots=boots,
        coverage=recorded("holdfast-1", (240, "full")),
        minutes=minutes, owed=owed, latency=Histogram(latency), offline=Histogram(offline),
        ages=Histogram(ages),
        slow=[
            Slow("plant-a", f"archiver-{i}", Histogram({20 - i: 900, 22 - i: 40})) for i in range(5)
        ],
        backlogs=[
            Backlog(
                "plant-a", f"line-{n}/recorder",
                [(BEGIN + i * 4 * MINUTE, max(0, int(300 * n + 40 * n * i - 7 * i * i * (n % 3))))
                 for i in range(60)],
                40 * n,
            )
            for n in range(1, 7)
        ],
        talkers=[
            Talker("plant-a", f"gateway-{i}", 900_000 // (i + 1), 110_000_000 // (i + 1),
                   2_000_000 // (i + 1))
            for i in range(10)
        ],
        churn=[Churn("plant-b", f"truck-{i}", 400 // (i + 1), 12 * (i % 2), 9 - i)
               for i in range(10)],
        drops=[Drop("queue_full", 5254), Drop("too_large", 31), Drop("not_authorized", 8)],
        expired=10_360, expired_bytes=4_300_000,
        retained=[(BEGIN + i * 4 * MINUTE, 1200 + 3 * i + i % 5, 90_000 + 200 * i)
                  for i in range(60)],
        bills=[
            Bill(f"plant-{chr(97 + i)}", 800_000 // (i + 1), 90_000_000 // (i + 1),
                 1_600_000 // (i + 1), 13 * i, 5e9 / (i + 1),
                 [(BEGIN + h * HOUR, (h + 1) * 1e8 / (i + 1)) for h in range(4)])
            for i in range(8)
        ],
        findings=[
            Finding("flapping", BEGIN + 12 * MINUTE, "plant-b", "truck-0",
                    "400 connects in 4 h, 100 an hour; the median of all clients is 2.", 9.0),
            Finding("mass_disconnect", BEGIN + 131 * MINUTE, "", "",
                    "1,204 of 4,138 sessions lost their connection within one minute.", 8.0),
            Finding("one_client", None, "plant-a", "gateway-0",
                    "31 % of all messages come from this one client.", 5.0),
            Finding("unusual_hour", BEGIN + 2 * HOUR, "plant-c", "",
                    "412,000 messages in this hour, the tenant's median is 130,000 "
                    "(robust z-score 7.3).", 7.3),
        ],
    )  # fmt: skip


def runs(number: int) -> list[Run]:
    """Return so many runs, the last violated."""
    found = []
    for batch in range(number):
        status: Literal["ok", "violated", "unknown"] = "unknown" if batch % 5 == 3 else "ok"
        lost = 0
        if batch == number - 1:
            status, lost = "violated", 56
        found.append(
            Run(batch, status, BEGIN + batch * HOUR, 40_000 + 900 * (batch % 7), lost,
                17 * (batch % 5 == 3), {"L2": "violated" if lost else "ok", "H1": "ok"})
        )  # fmt: skip
    return found


def story(invariant: str, number: int = 0, node: str = "holdfast-1", rows: int = 9) -> Story:
    """Return the story of a message that was passed over."""
    said = ("published message 991000 to 'line/1' at QoS 1, 42 bytes, packet id 7",
            "message 991000 is durable", "got its acknowledgement of message 991000, packet id 7",
            "message 991000 stored for stream 3", "disconnected: connection lost",
            "broker started: recording full, the boot before has 118,000 events",
            "connected, session resumed: MQTT 5.0, 3 subscriptions, 1 in flight",
            "was sent message 991001 at QoS 1, packet id 8",
            "acknowledged message 991001, packet id 8")  # fmt: skip
    told = [
        Told(BEGIN + at * 350_000, node, 1 + (at > 4), 118_000 + at,
             "gateway-7" if at < 4 else "line-0/recorder" if at != 5 else "", said[at % 9], at == 7)
        for at in range(rows)
    ]  # fmt: skip
    return Story(invariant, number, node, told, 12)


def violated() -> Picture:
    """Return the busy morning with sessions lost in a crash, messages lost, and a gap."""
    picture = busy()
    picture.outcome = "violated"
    picture.boots[0].lost = 3
    picture.boots[0].sessions_after = 4134
    picture.boots[2].sessions_before = None
    picture.boots[2].sessions_after = None
    picture.gaps = [
        Gap("holdfast-1", 2, BEGIN + 70 * MINUTE, BEGIN + 85 * MINUTE, "outbox_full", 18_223,
            "Level books instead of full."),
        Gap("holdfast-1", 5, BEGIN + 230 * MINUTE, None, "outbox_trimmed", None),
    ]  # fmt: skip
    for minute in picture.owed[40:55]:
        minute.stages["delivered"] = int(minute.stages["delivered"] * 0.7)
    for minute in picture.minutes[40:55]:
        minute.stages["pub_acked"] = int(minute.stages["pub_acked"] * 0.9)
    for name, number in (("S5", 3), ("L2", 52), ("D3", 1)):
        check = picture.check(name)
        assert check is not None
        check.outcome = "violated"
        check.violated = number
        check.witnesses = [
            {
                "node": "holdfast-1", "boot": 1 + i % 5, "seq": 118_000 + i, "tenant": "plant-a",
                "client_id": f"line-{i}/recorder", "session": 1099511627776 + i,
                "msg": 991_000 + 7 * i, "what": "passed over: below the position, never delivered",
            }
            for i in range(min(number, 100))
        ]  # fmt: skip
    picture.stories = [story("L2"), story("L2", 1), story("S5"), story("D3")]
    picture.runs, picture.batches = runs(31), 31
    picture.suppressions = [
        Suppression("D2", "node holdfast-1, session 7", "A test client sends without DUP.",
                    "2027-01-31", "used", 4),
        Suppression("W1", "node holdfast-1", "Restored by hand.", "2026-10-31", "expired"),
    ]  # fmt: skip
    quiet = picture.check("D2")
    assert quiet is not None
    quiet.violated = quiet.suppressed = 4
    for name in ("O1", "R1"):
        check = picture.check(name)
        assert check is not None
        check.outcome, check.unknown = "unknown", 1822
        check.reasons = ["1,822 deliveries touch the gap of 09:10 (outbox_full)"]
    return picture


def uneven() -> Picture:
    """Return the busy morning of six brokers, of which one only recorded everything."""
    picture = busy()
    picture.outcome = "unknown"
    picture.details = ["books", "full", "sampled"]
    picture.coverage += [
        *recorded("holdfast-2", (240, "sessions")),
        *recorded("holdfast-3", (60, "full"), (15, "lowered"), (165, "full"), sample=100),
        *recorded("holdfast-4", (240, "sample"), sample=50),
        *recorded("holdfast-5.plant-a.example", (239, "full"), (1, "nothing")),
        *recorded("holdfast-6", (240, "nothing")),
    ]
    for check in picture.checks:
        check.untested = sum(
            span.recorded not in check.tested_by for span in picture.coverage
        )  # fmt: skip
        if check.untested:
            check.outcome, check.unknown = "unknown", check.untested
            check.reasons = ["holdfast-2, 2026-11-01 08:00:00 to 12:00:00 UTC: single messages "
                             "were not recorded (detail books)"]  # fmt: skip
    return picture


def hostile() -> Picture:
    """Return a picture in which every name tries to be something else."""
    picture = violated()
    picture.title = HOSTILE
    for check in picture.checks:
        check.reasons = [HOSTILE]
        check.outcome, check.violated = "violated", 100
        check.witnesses = [
            {"client_id": f"{HOSTILE}{i}" + "x" * 300, HOSTILE: "w" * 4000, "seq": i}
            for i in range(100)
        ]
    for boot in picture.boots:
        boot.node = HOSTILE
    for covered in picture.coverage:
        covered.node = covered.reason = HOSTILE
        covered.recorded = "sessions"
    for gap in picture.gaps:
        gap.node = gap.reason = gap.detail = HOSTILE
    for item in (*picture.talkers, *picture.churn, *picture.slow, *picture.backlogs):
        item.tenant, item.client_id = HOSTILE, HOSTILE + "long" * 100
    for bill in picture.bills:
        bill.tenant = HOSTILE * 3
    for drop in picture.drops:
        drop.reason = HOSTILE
    for finding in picture.findings:
        finding.kind = finding.tenant = finding.subject = finding.reason = HOSTILE
    for told in picture.stories:
        told.node = HOSTILE
        for row in told.rows:
            row.text = row.client_id = HOSTILE
    for each in picture.suppressions:
        each.invariant = each.whom = each.reason = each.expires = HOSTILE
    picture.details = [HOSTILE]
    return picture
