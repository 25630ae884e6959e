"""A second opinion on a history, in SQL by DuckDB, straight from its Parquet files.

Shares no code with the audit or the generator. `Oracle` computes the books, the deliveries and the
facts, and accuses by each invariant; it knows gaps only as far as its docstrings say. Slow is fine.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import duckdb

HORIZON_S = 300
TOLERANCE_S = 60

_VIEWS = """
CREATE TABLE h AS SELECT *, boot << 40 | seq AS g, epoch_us(ts) AS us, epoch_us("at") AS at_us
    FROM read_parquet({files}, hive_partitioning = false);
-- What a boot's successor says the disk had; rows after it did not survive.
CREATE TABLE boots AS
    SELECT node, boot, max(seq) AS last_seq, bool_or(ev = 'shutdown') AS clean, min(us) AS began,
        max(us) AS ended,
        (SELECT count FROM h AS n WHERE n.node = h.node AND n.boot = h.boot + 1 AND n.ev = 'boot')
            AS claimed,
        (SELECT max(g) FROM h AS n WHERE n.node = h.node) AS end_g
    FROM h GROUP BY node, boot;
CREATE TABLE forgotten AS
    SELECT h.* FROM h JOIN boots USING (node, boot) WHERE h.seq > boots.claimed;
DELETE FROM h USING boots
    WHERE h.node = boots.node AND h.boot = boots.boot AND h.seq > boots.claimed;
CREATE TABLE msgs AS
    SELECT node, msg, any_value(us) AS us, any_value(g) AS g, any_value(pub) AS pub,
        any_value(topic) AS topic, any_value(pub_qos) AS pub_qos, any_value(bytes) AS bytes,
        any_value(expiry_s) AS expiry_s, any_value(tenant) AS tenant
    FROM h WHERE ev = 'msg_accepted' GROUP BY node, msg;
-- Connections of sessions, and what ended them; a start of the broker ends all.
CREATE TABLE life AS SELECT node, boot, g, us, ev, client_id, session, conn, reason, actor,
        expiry_s, at_us, subs, inflight, position, subs_check, sp, rmax, clean_start
    FROM h WHERE ev LIKE 'session\\_%' ESCAPE '\\' OR ev LIKE 'will\\_%' ESCAPE '\\';
CREATE TABLE ends AS SELECT node, session, min(g) AS g FROM life
    WHERE ev IN ('session_expired', 'session_terminated') GROUP BY ALL;
-- Holdings: a subscription that holds its stream, as an interval of g.
CREATE TABLE holdings AS
    WITH steps AS (SELECT node, session, tfilter, g, ev, stream, share, no_local,
            lead(g) OVER (PARTITION BY node, session, tfilter ORDER BY g) AS until
        FROM h WHERE ev IN ('subscribed', 'unsubscribed'))
    SELECT steps.* EXCLUDE until,
        least(coalesce(until, 4611686018427387904), coalesce(ends.g, 4611686018427387904)) AS until,
        regexp_replace(tfilter, '^\\$share/[^/]*/', '') AS plain
    FROM steps LEFT JOIN ends ON ends.node = steps.node AND ends.session = steps.session
        AND ends.g > steps.g
    WHERE steps.ev = 'subscribed' AND stream > 0;
CREATE TABLE owed AS
    SELECT e.node, hold.session, e.msg, min(e.g) AS g, max(hold.until) AS until
    FROM h AS e JOIN holdings AS hold ON hold.node = e.node AND hold.stream = e.stream
        AND e.g > hold.g AND e.g < hold.until
    JOIN msgs AS m ON m.node = e.node AND m.msg = e.msg
    JOIN (SELECT node, session, any_value(expiry_s) AS expiry_s FROM life
        WHERE ev = 'session_created' GROUP BY ALL) AS made
        ON made.node = e.node AND made.session = hold.session AND made.expiry_s > 0
    WHERE e.ev = 'msg_enqueued' AND hold.share IS NULL
        AND NOT (hold.no_local AND m.pub = hold.session)
    GROUP BY ALL;
-- What ended a delivery, and every sending with the one before it.
CREATE TABLE closings AS SELECT node, session, msg, pid, g, us, conn, boot, ev, qos FROM h
    WHERE msg IS NOT NULL AND (ev = 'msg_completed' OR ev = 'msg_moved'
        OR (ev = 'msg_acked' AND (qos = 1 OR reason >= 128)));
CREATE TABLE sent AS SELECT node, session, msg, pid, qos, dup, attempt, conn, boot, g, us, share,
        lag(g) OVER w AS g0, lag(pid) OVER w AS pid0, lag(conn) OVER w AS conn0,
        lag(boot) OVER w AS boot0
    FROM h WHERE ev = 'msg_delivered' WINDOW w AS (PARTITION BY node, session, msg ORDER BY g);
-- Sent while another message had the identifier.
CREATE TABLE doubled AS
    WITH uses AS (SELECT *, lag(msg) OVER w AS other, lag(g) OVER w AS before FROM sent
        WHERE pid > 0 WINDOW w AS (PARTITION BY node, session, pid ORDER BY g))
    SELECT u.node, u.session, u.msg, u.g FROM uses AS u WHERE other <> msg AND NOT EXISTS (
        FROM closings AS c WHERE c.node = u.node AND c.session = u.session AND c.msg = u.other
            AND c.g > u.before AND c.g < u.g);
CREATE TABLE firsts AS SELECT * FROM sent WHERE g0 IS NULL;
"""

_MINUTE = "us // 60000000 * 60000000"


class Oracle:
    """One history, loaded."""

    def __init__(self, directory: Path, without: Collection[str] = ()) -> None:
        """Load the history of `directory`, but for the segments of these names."""
        paths = sorted(directory.glob("date=*/hour=*/*.parquet"))
        files = ", ".join(f"'{path}'" for path in paths if path.name not in without)
        self._files = f"[{files}]"
        self.db = duckdb.connect()
        self.db.execute("SET threads = 2")
        self.db.execute("SET TimeZone = 'UTC'")
        self.db.execute(_VIEWS.replace("{files}", self._files))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.db.execute(sql).fetchall()

    # Numbers.

    def books_told(self) -> set[tuple[Any, ...]]:
        """Return (node, minute, tenant, stage, count, bytes, check1, check2) as it was told."""
        return set(
            self.rows(
                """SELECT node, epoch_us(bin), tenant, stage, sum(count)::BIGINT,
                    sum(total_bytes)::BIGINT, (sum(check1::HUGEINT) % 2305843009213693952)::BIGINT,
                    (sum(check2::HUGEINT) % 2305843009213693952)::BIGINT
                FROM (SELECT * FROM h UNION ALL SELECT * FROM forgotten)
                WHERE ev = 'books' GROUP BY ALL"""
            )
        )

    def books_counted(self) -> set[tuple[Any, ...]]:
        """Return the same, counted from the events."""
        return set(self.rows(f"SELECT * FROM ({_BOOKS}) ORDER BY ALL"))

    def facts(self) -> dict[str, int]:
        """Return how often what happened; dropped by reason."""
        pairs = self.rows(
            """SELECT CASE WHEN ev = 'msg_delivered' AND attempt > 1 THEN 'redelivered'
                    WHEN ev = 'msg_dropped' THEN 'dropped ' || reason ELSE ev END AS fact,
                sum(CASE WHEN ev = 'msg_dropped' THEN count ELSE 1 END)::BIGINT
            FROM (SELECT * FROM h UNION ALL SELECT * FROM forgotten)
            WHERE ev IN ('msg_accepted', 'msg_persisted', 'pub_acked', 'pub_completed',
                'pub_dup_received', 'msg_delivered', 'msg_acked', 'msg_completed', 'msg_expired',
                'msg_dropped', 'msg_moved') GROUP BY 1"""
        )
        return dict(pairs)

    def disputed(self, table: str) -> list[tuple[Any, ...]]:
        """Return up to ten deliveries about which `table` (Parquet files) says something else.

        What the table alone has must be owed and never sent. What never ended is `open` here: ends
        of sessions and subscriptions, and gaps, are the table's own business.
        """
        return self.rows(
            f"""WITH ours AS ({_DELIVERIES}),
                theirs AS (SELECT node, session, msg, outcome, attempts
                    FROM read_parquet('{table}') WHERE session IS NOT NULL)
            SELECT node, session, msg, o.outcome, t.outcome, o.attempts, t.attempts
            FROM ours AS o FULL JOIN theirs AS t USING (node, session, msg)
            WHERE (o.attempts IS NULL AND (t.attempts > 0 OR t.outcome NOT IN ({_NEVER_ENDED})
                    AND t.outcome <> 'dropped'))
                OR t.attempts IS NULL OR t.attempts <> o.attempts
                OR (t.outcome <> o.outcome
                    AND NOT (o.outcome = 'open' AND t.outcome IN ({_NEVER_ENDED})))
            LIMIT 10"""
        )

    # Accusations: (node, session, msg), None where it is about neither.

    def accuse(self, invariant: str) -> set[tuple[Any, ...]]:
        """Return who violates an invariant; knows nothing of gaps but that 1051 explains holes."""
        return {
            row
            for sql in ACCUSATIONS[invariant]
            for row in self.rows(sql.replace("FILES", self._files))
        }


_BOOKS = f"""
WITH parts AS (
    SELECT node, {_MINUTE} AS minute, tenant, 'accepted' AS stage, bytes, msg, 1 AS n FROM h
        WHERE ev = 'msg_accepted'
    UNION ALL SELECT node, {_MINUTE}, tenant, 'stored', bytes, msg, 1 FROM h
        WHERE ev = 'msg_accepted' AND msg < 4611686018427387904
    UNION ALL SELECT node, {_MINUTE}, tenant, 'ack_owed', bytes, msg, 1 FROM h
        WHERE ev = 'msg_accepted' AND pub_qos > 0 AND actor = 'client'
    UNION ALL SELECT node, m.us // 60000000 * 60000000, m.tenant,
            CASE h.ev WHEN 'msg_persisted' THEN 'persisted' ELSE 'pub_acked' END,
            m.bytes, m.msg, 1
        FROM h JOIN msgs AS m USING (node, msg) WHERE h.ev IN ('msg_persisted', 'pub_acked')
    UNION ALL SELECT node, h.us // 60000000 * 60000000, h.tenant,
            CASE WHEN h.ev = 'msg_expired' THEN 'expired' WHEN h.ev = 'msg_dropped' THEN 'dropped'
                WHEN h.attempt > 1 THEN 'redelivered' ELSE 'delivered' END,
            m.bytes, m.msg, 1
        FROM h JOIN msgs AS m USING (node, msg)
        WHERE h.ev IN ('msg_delivered', 'msg_expired', 'msg_dropped') AND h.msg_last IS NULL
    UNION ALL SELECT node, {_MINUTE}, tenant, 'dropped', 0, NULL, count FROM h
        WHERE ev = 'msg_dropped' AND (msg IS NULL OR msg_last IS NOT NULL)
    UNION ALL SELECT node, {_MINUTE}, tenant,
            CASE ev WHEN 'msg_acked' THEN 'acked' ELSE 'completed' END, 0, msg, 1 FROM h
        WHERE ev IN ('msg_acked', 'msg_completed')
    UNION ALL SELECT node, h.us // 60000000 * 60000000, h.tenant,
            CASE WHEN h.dup THEN 'redelivered' ELSE 'delivered' END, r.bytes, NULL, 1
        FROM h JOIN (SELECT node, topic, at_us, any_value(bytes) AS bytes FROM h
            WHERE ev = 'retained_set' GROUP BY ALL) AS r USING (node, topic, at_us)
        WHERE h.ev = 'retained_sent'
)
SELECT node, minute, tenant, stage, sum(n)::BIGINT, sum(bytes)::BIGINT,
    (sum(CASE WHEN msg < 4611686018427387904 THEN msg ELSE 0 END::HUGEINT)
        % 2305843009213693952)::BIGINT,
    (sum((CASE WHEN msg < 4611686018427387904 THEN msg % 1073741824 ELSE 0 END::HUGEINT)
        * (CASE WHEN msg < 4611686018427387904 THEN msg % 1073741824 ELSE 0 END))
        % 2305843009213693952)::BIGINT
FROM parts GROUP BY ALL
"""

# How far every delivery got that was sent, expired or dropped alone, and how often it was sent.
_DELIVERIES = """
SELECT node, session, msg,
    CASE max(CASE ev WHEN 'msg_completed' THEN 6
            WHEN 'msg_acked' THEN CASE WHEN qos = 1 OR reason >= 128 THEN 5 ELSE 1 END
            WHEN 'msg_expired' THEN 4 WHEN 'msg_dropped' THEN 3
            WHEN 'msg_delivered' THEN CASE WHEN qos = 0 THEN 2 ELSE 1 END ELSE 1 END)
        WHEN 6 THEN 'completed' WHEN 5 THEN 'acked' WHEN 4 THEN 'expired'
        WHEN 3 THEN 'dropped' WHEN 2 THEN 'delivered_qos0' ELSE 'open' END AS outcome,
    count(*) FILTER (ev = 'msg_delivered') AS attempts
FROM h WHERE msg IS NOT NULL AND session IS NOT NULL AND msg_last IS NULL
    AND ev IN ('msg_delivered', 'msg_acked', 'msg_completed', 'msg_expired', 'msg_dropped',
        'msg_moved')
GROUP BY ALL
"""
_NEVER_ENDED = "'open', 'session_ended', 'unsubscribed', 'unknown', 'lost', 'moved'"

_OPEN = """owed AS o ANTI JOIN (SELECT node, session, msg, g FROM h
    WHERE ev IN ('msg_delivered', 'msg_expired', 'msg_dropped') AND session IS NOT NULL
        AND msg IS NOT NULL AND msg_last IS NULL) AS d
    ON d.node = o.node AND d.session = o.session AND d.msg = o.msg
    ANTI JOIN (SELECT * FROM h WHERE ev = 'msg_dropped' AND msg_last IS NOT NULL) AS r
    ON r.node = o.node AND r.session = o.session AND o.msg BETWEEN r.msg AND r.msg_last"""
_LAST = """(SELECT node, session, arg_max(ev, g) AS ev, max(g) AS g, arg_max(us, g) AS us FROM life
    WHERE ev LIKE 'session%' GROUP BY ALL)"""

# Queries of (node, session, msg).
ACCUSATIONS: dict[str, list[str]] = {
    # Of the history itself: (node, boot, first seq that is concerned).
    "H1": [
        # A hole, unless a later row says that exactly so many were thrown away.
        """WITH steps AS (SELECT node, boot, seq,
                lag(seq, 1, 0) OVER (PARTITION BY node, boot ORDER BY seq) + 1 AS wanted FROM h)
        SELECT s.node, s.boot, s.wanted FROM steps AS s WHERE seq > wanted AND NOT EXISTS (
            FROM h WHERE ev = 'history_gap' AND reason = 1051 AND h.node = s.node
                AND h.boot = s.boot AND h.seq >= s.seq AND h.count = s.seq - s.wanted)""",
        "SELECT node, boot, NULL FROM boots WHERE claimed <> last_seq",
        r"""WITH meta AS (SELECT file_name, decode(value)::BIGINT AS rows
                FROM parquet_kv_metadata(FILES) WHERE decode(key) = 'holdfast.rows'),
            files AS (SELECT file_name, num_rows FROM parquet_file_metadata(FILES)),
            name AS (SELECT *, regexp_extract(file_name, '([^/]*)-(\d+)-(\d+)-\d+\.parquet',
                ['node', 'boot', 'seq']) AS part FROM meta JOIN files USING (file_name))
        SELECT part.node, part.boot::BIGINT, part.seq::BIGINT FROM name WHERE rows <> num_rows""",
    ],
    "L1": [
        """SELECT a.node, a.session, a.msg FROM h AS a
        SEMI JOIN (SELECT * FROM h WHERE ev = 'msg_enqueued') AS e
            ON e.node = a.node AND e.msg = a.msg
        LEFT JOIN (SELECT * FROM h WHERE ev = 'msg_persisted') AS p
            ON p.node = a.node AND p.msg = a.msg
        WHERE a.ev = 'pub_acked' AND (p.g IS NULL OR p.g > a.g)"""
    ],
    "L2": [
        # Passed over.
        f"""SELECT o.node, o.session, o.msg FROM {_OPEN} WHERE EXISTS (
            FROM life AS p WHERE p.node = o.node AND p.session = o.session AND p.g > o.g
                AND p.g < o.until AND p.position >= o.msg
                AND p.ev IN ('session_disconnected', 'session_resumed', 'session_restored'))
        OR EXISTS (FROM firsts AS f JOIN owed AS w USING (node, session, msg)
            WHERE f.node = o.node AND f.session = o.session AND f.msg > o.msg
                AND f.g > o.g AND f.g < o.until)""",
        # Not sent again.
        """SELECT s.node, s.session, s.msg FROM sent AS s
        JOIN life AS r ON r.node = s.node AND r.session = s.session AND r.g > s.g
            AND r.ev = 'session_resumed'
        ANTI JOIN (SELECT * FROM h WHERE ev IN ('msg_acked', 'msg_moved', 'msg_completed')) AS c
            ON c.node = s.node AND c.session = s.session AND c.msg = s.msg AND c.g > s.g
        ANTI JOIN sent AS later
            ON later.node = s.node AND later.session = s.session AND later.msg = s.msg
            AND later.g > s.g
        WHERE s.qos > 0 AND EXISTS (FROM firsts AS f WHERE f.node = s.node
            AND f.session = s.session AND f.g > r.g AND f.qos > 0)""",
        # Stuck.
        f"""SELECT o.node, o.session, o.msg FROM {_OPEN}
        JOIN {_LAST} AS l ON l.node = o.node AND l.session = o.session
        WHERE l.ev IN ('session_created', 'session_resumed') AND o.until = 4611686018427387904
            AND (SELECT max(us) FROM h WHERE h.node = o.node)
                - greatest(l.us, (SELECT us FROM msgs AS m WHERE m.node = o.node AND m.msg = o.msg))
                > {HORIZON_S} * 1000000""",
        # Promised, and not on the disk.
        """SELECT DISTINCT node, NULL, msg FROM forgotten WHERE ev IN ('pub_acked', 'msg_persisted')
            AND msg < 4611686018427387904""",
    ],
    "L3": [
        r"""WITH topics AS (SELECT DISTINCT topic FROM h WHERE ev = 'msg_accepted'),
            filters AS (SELECT DISTINCT plain FROM holdings),
            pairs AS (SELECT topic, plain FROM topics JOIN filters ON regexp_full_match(topic,
                replace(replace(regexp_escape(plain), '\+', '[^/]*'), '\/\#', '(/.*)?')))
        SELECT DISTINCT m.node, hold.session, m.msg FROM msgs AS m JOIN pairs USING (topic)
        JOIN holdings AS hold ON hold.node = m.node AND hold.plain = pairs.plain
            AND m.g > hold.g AND m.g < hold.until
        ANTI JOIN (SELECT * FROM h WHERE ev = 'msg_enqueued') AS e
            ON e.node = m.node AND e.msg = m.msg AND e.stream = hold.stream
        WHERE m.pub_qos > 0"""
    ],
    "D1": [
        # PUBREL, PUBCOMP and a refusal free the identifier. Over a crash DUP 0 says that the
        # message is new.
        """WITH steps AS (SELECT *, lag(ev) OVER w AS before, lag(boot) OVER w AS boot0 FROM h
            WHERE (ev = 'msg_accepted' AND pub_qos = 2 AND pid > 0)
                OR ev IN ('pub_completed', 'pub_released') OR (ev = 'pub_acked' AND reason >= 128)
            WINDOW w AS (PARTITION BY node, session, pid ORDER BY g))
        SELECT node, session, msg FROM steps AS s WHERE ev = 'msg_accepted' AND before = ev
            AND (dup OR NOT EXISTS (FROM boots AS b WHERE b.node = s.node AND NOT b.clean
                AND b.boot >= s.boot0 AND b.boot < s.boot))""",
        # A message of a group may come back; a refusal shortly before a crash may be undone.
        """SELECT s.node, s.session, s.msg FROM sent AS s JOIN h AS c USING (node, session, msg)
        JOIN boots AS b ON b.node = c.node AND b.boot = c.boot
        WHERE c.g < s.g AND s.qos = 2 AND c.ev IN ('msg_acked', 'msg_completed')
            AND NOT (c.ev = 'msg_acked' AND c.reason >= 128 AND s.boot > c.boot AND NOT b.clean
                AND c.us >= b.ended - 1000000)
            AND NOT EXISTS (FROM h AS m WHERE m.node = s.node AND m.session = s.session
                AND m.msg = s.msg AND m.ev = 'msg_moved' AND m.g > c.g AND m.g < s.g)""",
    ],
    "D2": [
        # A progress at QoS 1 that reached the disk late is sent again after a crash: legal.
        """SELECT s.node, s.session, s.msg FROM sent AS s
        LEFT JOIN (SELECT node, session, msg, min(g) AS g FROM closings GROUP BY ALL) AS c
            ON c.node = s.node AND c.session = s.session AND c.msg = s.msg AND c.g < s.g
        WHERE s.g0 IS NOT NULL AND s.qos = 1 AND s.share IS NULL AND (
            (s.conn = s.conn0 AND s.boot = s.boot0)
            OR (c.g IS NULL AND (s.pid <> s.pid0 OR NOT s.dup)))""",
        """SELECT s.node, s.session, s.msg FROM sent AS s
        WHERE s.g0 IS NOT NULL AND s.qos = 2
            AND ((s.conn = s.conn0 AND s.boot = s.boot0) OR s.pid <> s.pid0 OR NOT s.dup)
            AND NOT EXISTS (FROM h AS c WHERE c.node = s.node AND c.session = s.session
                AND c.msg = s.msg AND c.g < s.g AND c.ev IN ('msg_acked', 'msg_completed'))""",
    ],
    "D3": [
        "SELECT node, session, msg FROM doubled",
        # Acknowledged: another message than was sent last under that identifier.
        """WITH told AS (SELECT node, session, msg, boot, ev, g,
                max(CASE WHEN ev IN ('msg_delivered', 'retained_sent') THEN g END) OVER
                    (PARTITION BY node, session, pid ORDER BY g) AS sent_g
            FROM h WHERE pid > 0 AND session IS NOT NULL
                AND ev IN ('msg_delivered', 'retained_sent', 'msg_acked', 'msg_completed'))
        SELECT a.node, a.session, a.msg FROM told AS a JOIN told AS s
            ON s.node = a.node AND s.g = a.sent_g AND s.boot = a.boot
        ANTI JOIN doubled AS d ON d.node = s.node AND d.g = s.g
        WHERE a.ev IN ('msg_acked', 'msg_completed') AND a.msg <> s.msg""",
    ],
    "S1": [
        """SELECT node, session, NULL FROM life
        WHERE (ev = 'session_created' AND sp) OR (ev = 'session_resumed' AND NOT sp)""",
        # Created although there was one.
        """WITH made AS (SELECT *, lag(session) OVER (PARTITION BY node, client_id ORDER BY g)
                AS old FROM life WHERE ev = 'session_created')
        SELECT m.node, m.session, NULL FROM made AS m
        LEFT JOIN ends AS e ON e.node = m.node AND e.session = m.old
        JOIN life AS o ON o.node = m.node AND o.session = m.old AND o.ev = 'session_created'
        WHERE o.expiry_s > 0 AND (e.g IS NULL OR e.g > m.g)""",
        """SELECT r.node, r.session, NULL FROM life AS r JOIN ends AS e USING (node, session)
        WHERE r.ev = 'session_resumed' AND r.g > e.g""",
    ],
    "S2": [
        # Subscriptions as counted.
        """WITH steps AS (SELECT node, session, g, ev, tfilter,
                NULL AS subs, NULL AS subs_check FROM h WHERE ev IN ('subscribed', 'unsubscribed')),
            state AS (SELECT r.node, r.session, r.g, r.subs, s.tfilter, arg_max(s.ev, s.g) AS ev
                FROM life AS r LEFT JOIN steps AS s ON s.node = r.node AND s.session = r.session
                    AND s.g < r.g WHERE r.ev = 'session_resumed' GROUP BY ALL)
        SELECT node, session, NULL FROM state GROUP BY node, session, g, subs
        HAVING count(*) FILTER (ev = 'subscribed') <> subs""",
        """WITH told AS (SELECT node, session, g, ev, subs_check,
                lag(subs_check) OVER (PARTITION BY node, session ORDER BY g) AS before
            FROM life WHERE ev IN ('session_resumed', 'session_disconnected', 'session_restored'))
        SELECT node, session, NULL FROM told
        WHERE ev = 'session_resumed' AND subs_check <> before""",
        # In flight as counted; late progress may add to it after a crash.
        """WITH copies AS (SELECT r.node, r.session, r.g, count(DISTINCT s.pid) AS n
            FROM life AS r JOIN h AS s ON s.node = r.node AND s.session = r.session AND s.g < r.g
                AND s.ev = 'retained_sent' AND s.pid > 0 AND NOT EXISTS (FROM h AS c
                    WHERE c.node = s.node AND c.session = s.session AND c.pid = s.pid
                        AND c.msg IS NULL AND c.g > s.g AND c.g < r.g AND (c.ev = 'msg_completed'
                            OR (c.ev = 'msg_acked' AND (c.qos = 1 OR c.reason >= 128))))
            WHERE r.ev = 'session_resumed' GROUP BY ALL),
            open AS (SELECT r.node, r.session, r.g, r.boot, r.inflight,
                count(DISTINCT s.msg) + coalesce(any_value(k.n), 0) AS n
            FROM life AS r LEFT JOIN copies AS k USING (node, session, g)
                LEFT JOIN sent AS s ON s.node = r.node AND s.session = r.session
                AND s.g < r.g AND s.qos > 0 AND NOT EXISTS (FROM closings AS c
                    WHERE c.node = s.node AND c.session = s.session AND c.msg = s.msg
                        AND c.g > s.g AND c.g < r.g)
            WHERE r.ev = 'session_resumed' GROUP BY ALL)
        SELECT o.node, o.session, NULL FROM open AS o WHERE inflight < n OR (inflight > n
            AND NOT EXISTS (FROM life AS c WHERE c.node = o.node AND c.session = o.session
                AND c.ev = 'session_disconnected' AND c.reason = 1002 AND c.g < o.g
                AND NOT EXISTS (FROM life AS l WHERE l.node = o.node AND l.session = o.session
                    AND l.ev = 'session_resumed' AND l.g > c.g AND l.g < o.g)))""",
        # A position below what was done long before, without a crash.
        """WITH resumed AS (SELECT node, session, g, us, position, lag(reason) OVER
                (PARTITION BY node, session ORDER BY g) AS reason, ev
            FROM life WHERE ev IN ('session_resumed', 'session_disconnected'))
        SELECT r.node, r.session, NULL FROM resumed AS r JOIN closings AS c
            ON c.node = r.node AND c.session = r.session AND c.msg > r.position AND c.g < r.g
            AND c.us < r.us - 1000000 AND c.ev <> 'msg_moved'
        JOIN owed AS o ON o.node = c.node AND o.session = c.session AND o.msg = c.msg
        WHERE r.ev = 'session_resumed' AND r.reason <> 1002 AND NOT EXISTS (
            FROM owed AS w ANTI JOIN firsts AS f ON f.node = w.node AND f.session = w.session
                AND f.msg = w.msg AND f.g < r.g
            WHERE w.node = r.node AND w.session = r.session AND w.g < r.g AND w.msg < c.msg
                AND w.msg > r.position)""",
    ],
    "S3": [
        f"""WITH steps AS (SELECT *, lag(ev) OVER w AS ev0, lag(at_us) OVER w AS at0,
                lag(us) OVER w AS us0, lag(expiry_s) OVER w AS expiry0
            FROM life WHERE ev IN ('session_created', 'session_resumed', 'session_disconnected',
                'session_expired') WINDOW w AS (PARTITION BY node, session ORDER BY g)),
            due AS (SELECT *, coalesce(at0, us0) + expiry0 * 1000000 AS due FROM steps)
        SELECT d.node, d.session, NULL FROM due AS d JOIN boots AS b USING (node, boot)
        WHERE (d.ev = 'session_expired' AND (d.ev0 <> 'session_disconnected' OR d.us < d.due
                OR d.expiry0 = 4294967295
                OR (d.us - greatest(d.due, b.began) > {TOLERANCE_S} * 1000000
                    AND d.actor = 'gc')))
            OR (d.ev = 'session_resumed' AND d.ev0 = 'session_disconnected'
                AND d.expiry0 <> 4294967295 AND d.us > d.due)"""
    ],
    "S4": [
        """WITH steps AS (SELECT *, lag(ev) OVER w AS ev0, lag(boot) OVER w AS boot0 FROM life
            WHERE ev IN ('session_created', 'session_resumed', 'session_disconnected')
            WINDOW w AS (PARTITION BY node, client_id ORDER BY g))
        SELECT node, session, NULL FROM steps
        WHERE ev <> 'session_disconnected' AND ev0 <> 'session_disconnected' AND boot = boot0""",
        "SELECT node, session, NULL FROM life WHERE ev = 'session_taken_over' AND reason <> 142",
    ],
    "S5": [
        """WITH made AS (SELECT c.node, c.session, c.boot AS born, max(e.boot) AS died
                FROM life AS c LEFT JOIN life AS e ON e.node = c.node AND e.session = c.session
                    AND e.ev IN ('session_expired', 'session_terminated')
                WHERE c.ev = 'session_created' AND c.expiry_s > 0 GROUP BY ALL)
        SELECT m.node, m.session, NULL FROM made AS m JOIN boots AS b ON b.node = m.node
            AND b.boot > m.born AND (m.died IS NULL OR b.boot <= m.died)
        SEMI JOIN (SELECT * FROM h WHERE ev = 'recovered') AS r
            ON r.node = b.node AND r.boot = b.boot
        ANTI JOIN life AS l ON l.node = m.node AND l.session = m.session AND l.boot = b.boot
            AND l.ev <> 'session_disconnected'""",
        """WITH told AS (SELECT node, session, g, ev, subs, subs_check,
                lag(subs_check) OVER w AS before FROM life
            WHERE ev IN ('session_resumed', 'session_disconnected', 'session_restored')
            WINDOW w AS (PARTITION BY node, session ORDER BY g))
        SELECT node, session, NULL FROM told
        WHERE ev = 'session_restored' AND subs_check <> before""",
        "SELECT node, NULL, NULL FROM boots WHERE claimed < last_seq",
    ],
    "F1": [
        """WITH moves AS (
            SELECT node, boot, session, conn, g, msg, 1 AS step FROM h
                WHERE ev IN ('msg_delivered', 'retained_sent') AND qos > 0
                    AND NOT coalesce(ev = 'msg_delivered' AND EXISTS (FROM sent AS s
                        WHERE s.node = h.node AND s.session = h.session AND s.msg = h.msg
                            AND s.g = h.g AND s.conn0 = s.conn AND s.boot0 = s.boot), false)
            UNION ALL SELECT c.node, c.boot, c.session, c.conn, c.g, c.msg, -1 FROM closings AS c
                SEMI JOIN sent AS s ON s.node = c.node AND s.boot = c.boot
                    AND s.session = c.session AND s.conn = c.conn AND s.msg = c.msg AND s.g < c.g
            UNION ALL SELECT node, boot, session, conn, g, msg, -1 FROM h
                WHERE ev = 'msg_acked' AND msg IS NULL),
            sums AS (SELECT *, sum(step) OVER (PARTITION BY node, boot, session, conn ORDER BY g)
                AS n FROM moves)
        SELECT s.node, s.session, s.msg FROM sums AS s JOIN life AS l ON l.node = s.node
            AND l.boot = s.boot AND l.conn = s.conn AND l.session = s.session
            AND l.ev IN ('session_created', 'session_resumed') WHERE s.step > 0 AND s.n > l.rmax"""
    ],
    "O1": [
        """WITH order_ AS (SELECT f.node, f.session, f.msg, f.g, m.g AS accepted,
                max(m.g) OVER (PARTITION BY f.node, f.session, m.pub, m.topic, f.qos
                    ORDER BY f.g) AS top
            FROM firsts AS f JOIN msgs AS m USING (node, msg) WHERE f.share IS NULL)
        SELECT node, session, msg FROM order_ WHERE accepted < top""",
        """SELECT f.node, f.session, f.msg FROM firsts AS f JOIN msgs AS m USING (node, msg)
        WHERE f.g < m.g AND f.share IS NULL""",
    ],
    "E1": [
        """SELECT f.node, f.session, f.msg FROM firsts AS f JOIN msgs AS m USING (node, msg)
        WHERE f.us >= m.us + m.expiry_s * 1000000""",
        """SELECT e.node, e.session, e.msg FROM h AS e JOIN msgs AS m USING (node, msg)
        WHERE e.ev = 'msg_expired' AND (m.expiry_s IS NULL OR e.us < m.us + m.expiry_s * 1000000)
        """,
    ],
    "W1": [
        # Published without one, or before it was due: unless its session ends.
        """WITH steps AS (SELECT node, session, us, ev, reason, at_us,
                lag(ev) OVER w AS ev0, lag(at_us) OVER w AS at0
            FROM life WHERE ev LIKE 'will%' OR (ev = 'session_disconnected' AND reason = 0)
            WINDOW w AS (PARTITION BY node, session ORDER BY g))
        SELECT node, session, NULL FROM steps AS s WHERE ev = 'will_fired'
            AND (ev0 IS NULL OR ev0 NOT IN ('will_armed', 'will_delayed')
                OR (us < at0 AND NOT EXISTS (FROM life AS e WHERE e.node = s.node
                    AND e.session = s.session AND e.us = s.us
                    AND e.ev IN ('session_terminated', 'session_expired'))))""",
        # Its session ended, and nothing became of it at that moment.
        """WITH steps AS (SELECT node, session, us, ev, lag(ev) OVER w AS ev0,
                lead(ev) OVER w AS ev1, lead(us) OVER w AS us1
            FROM life WHERE ev LIKE 'will%' OR ev IN ('session_terminated', 'session_expired')
            WINDOW w AS (PARTITION BY node, session ORDER BY g))
        SELECT node, session, NULL FROM steps WHERE ev IN ('session_terminated', 'session_expired')
            AND ev0 IN ('will_armed', 'will_delayed')
            AND NOT coalesce(ev1 LIKE 'will%' AND us1 = us, false)""",
    ],
    "R1": [
        """WITH sent_ AS (SELECT s.node, s.session, s.topic, s.at_us, arg_max(r.ev, r.g) AS ev,
                arg_max(r.at_us, r.g) AS at0 FROM h AS s LEFT JOIN h AS r ON r.node = s.node
                AND r.topic = s.topic AND r.g < s.g
                AND r.ev IN ('retained_set', 'retained_cleared', 'retained_expired')
            WHERE s.ev = 'retained_sent' GROUP BY s.node, s.session, s.topic, s.at_us, s.g)
        SELECT node, session, NULL FROM sent_ WHERE ev <> 'retained_set' OR at0 <> at_us"""
    ],
    "G1": [
        "SELECT node, NULL, NULL FROM h WHERE ev = 'gc_run' AND count < 0",
    ],
}
