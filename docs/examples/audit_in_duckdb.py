"""Ask the tables of an audit in SQL: python docs/examples/audit_in_duckdb.py OUT

OUT is the folder that `holdfast audit run --out OUT` has written. Needs `pip install duckdb`, and
`holdfast` on the PATH for the views.
"""

import subprocess
import sys

import duckdb

QUESTIONS = {
    "violations by invariant and node": """
        SELECT invariant, node, count(*) AS witnesses, count(suppressed) AS suppressed
        FROM audit_violations GROUP BY ALL ORDER BY invariant, node""",
    "what became of deliveries, by the hour": """
        SELECT date_trunc('hour', minute) AS hour, fate, sum(number) AS number
        FROM audit_fates GROUP BY ALL ORDER BY hour, fate""",
    "the clients that lose their connection most": """
        SELECT tenant, client_id, connects, lost
        FROM audit_clients WHERE lost > 0 ORDER BY lost DESC, client_id LIMIT 10""",
    "half of the acknowledgements came within (ms), at least": """
        SELECT client_id, sum(number) AS number, quantile_disc(from_ms, 0.5) AS half_ms
        FROM audit_latency GROUP BY client_id ORDER BY half_ms DESC, client_id LIMIT 10""",
}


def main() -> int:
    """Print the answer to each question whose views are there."""
    out = sys.argv[1]
    views = subprocess.run(
        ["holdfast", "audit", "views", "--out", out], check=True, capture_output=True, text=True
    ).stdout
    database = duckdb.connect()
    database.execute(views)
    there = {
        name for (name,) in database.execute("SELECT view_name FROM duckdb_views()").fetchall()
    }
    for title, question in QUESTIONS.items():
        if question.split(" FROM ")[-1].split()[0] not in there:
            continue
        print(title)
        for row in database.execute(question).fetchall():
            print("  ", *row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
