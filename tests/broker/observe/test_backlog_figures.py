"""What is owed becomes metrics: by kind, with the age of the oldest and of the count itself."""

from broker.observe.backlog_figures import BacklogFigures


def test_figures_become_metrics_and_the_count_grows_old() -> None:
    figures = BacklogFigures(
        100.0,
        {"offline": 1, "online": 2, "group": 3},
        {"offline": 10, "online": 20, "group": 30},
        4.5,
    )
    samples = {
        (sample.name, sample.labels.get("kind")): sample.value
        for metric in figures.metrics("holdfast_", 130.0)
        for sample in metric.samples
    }
    assert samples == {
        ("holdfast_backlog_messages", "offline"): 1,
        ("holdfast_backlog_messages", "online"): 2,
        ("holdfast_backlog_messages", "group"): 3,
        ("holdfast_backlog_bytes", "offline"): 10,
        ("holdfast_backlog_bytes", "online"): 20,
        ("holdfast_backlog_bytes", "group"): 30,
        ("holdfast_oldest_owed_seconds", None): 4.5,
        ("holdfast_backlog_census_age_seconds", None): 30.0,
    }
