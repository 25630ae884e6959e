"""Settings for all tests: hypothesis profiles, tiers, order of files, threads that stay, and what
is skipped on the compiled core.

Some tests look inside the core: they replace a method, list `__slots__`, read private state, or
pass a stand-in for one of our classes. Compiled classes allow none of that, so the tests named
below run on the sources only. scripts/test also leaves out directories that test nothing compiled.
"""

import gc
import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest

import session.engine
from tests import file_order
from tests.skips import pytest_runtest_makereport
from tests.threads import no_thread_outlives_its_file
from tests.umask import no_umask_outlives_its_test

__all__ = [  # fixtures and a hook
    "no_thread_outlives_its_file",
    "no_umask_outlives_its_test",
    "pytest_runtest_makereport",
]

# A shell lets what it runs in the background ignore Ctrl-C, and a process hands that on: the tests
# that send it would wait for an end that never comes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

COMPILED = bool(os.environ.get("HOLDFAST_COMPILED"))
if COMPILED:
    assert session.engine.__file__.endswith(".so"), session.engine.__file__

LOOKS_INSIDE = (
    "tests/session/lifetime/test_connect.py::test_clients_do_not_fill_a_batch",
    "tests/session/lifetime/test_trimming.py::test_a_generation_that_goes_takes_no_message",
    "tests/broker/configuration/test_options.py::test_every_engine_setting_can_be_configured",
    "tests/broker/configuration/test_show.py::test_the_template_loads_as_the_defaults_even_with",
    "tests/broker/configuration/test_config.py::test_without_anything_the_defaults_hold",
    "tests/broker/loop/test_driver.py::test_a_bug_in_timed_work_is_counted_and_does_not_spin",
    "tests/broker/loop/test_driver.py::test_a_bug_in_timed_work_keeps_no_call_of_another_thread",
    "tests/broker/loop/test_driver.py::test_an_exception_at_the_end_of_a_tick_ends_everything",
    "tests/broker/loop/test_driver.py::test_an_exception_when_a_commit_is_released_ends_everything",
    "tests/session/delivery/test_publish_bytes.py::test_the_message_itself_is_not_changed",
    "tests/session/publish/test_storage_quota.py::test_reject_counts_deep_backlogs_in_slices",
    "tests/session/publish/test_storage_quota.py::test_reject_looks_at_many_",
    "tests/session/routing/test_router.py::",
    "tests/session/delivery/fetching/test_requests.py::",
    "tests/session/delivery/fetching/test_awaited_lists.py::test_only_so_many_wait",
    "tests/session/feed/test_dead_letters.py::test_beyond_a_limit_of_bytes_letters_",
    "tests/broker/loop/test_driver.py::test_the_loop_rests_after_a_tick_as_long_as_its_pace_says",
    "tests/broker/loop/test_client_stream.py::test_a_bug_in_any_callback_is_counted_and_contained",
    "tests/broker/loop/test_client_stream.py::test_a_failing_store_met_by_one_connection_ends_everything",
    "tests/broker/loop/test_client_stream.py::test_a_bug_met_by_one_connection_costs_that_connection_only",
    "tests/broker/loop/test_client_stream.py::test_the_engine_hears_of_a_lost_stream_once",
    "tests/mqtt/test_decoder.py::test_a_megabyte_of_user_properties_byte_by_byte_is_looked_at",
    "tests/mqtt/test_decoder.py::test_bytes_looked_at_grow_with_the_bytes_received",
    "tests/mqtt/test_decoder.py::test_the_block_cache_is_bounded",
    "tests/mqtt/test_decoder.py::test_the_topic_cache_is_bounded",
    "tests/mqtt/test_decoder.py::test_a_full_topic_cache_is_emptied_when_many_topics_were_not_in",
    "tests/broker/network/test_websocket.py::test_a_read_in_pieces_stays_in_order_when_it_is_paused_within",
    "tests/mqtt/test_encoder.py::test_a_packet_beyond_the_largest_remaining_length_is_refused",
    "tests/security/test_floods.py::test_c02_properties_that_come_byte_by_byte_are_looked_at_once",
    "tests/security/test_floods.py::test_c09_a_filter_of_every_wildcard_costs_its_levels",
    "tests/security/test_floods.py::test_c09_a_topic_costs_what_matches_it_and_no_more",
    "tests/session/state/test_shared_group_record.py::test_a_row_gives_the_record_back",
    "tests/session/state/test_shared_group_record.py::test_the_format_is_the_one_on_disk",
    "tests/session/state/test_subscription.py::test_a_row_gives_the_subscription_back",
    "tests/session/state/test_subscription.py::test_the_format_is_the_one_on_disk",
    "tests/session/state/test_will_record.py::test_a_row_gives_the_record_back",
    "tests/session/state/test_will_record.py::test_a_row_of_version_1_is_read_and_names_no_incarnation",
    "tests/session/state/test_will_record.py::test_a_will_of_the_largest_size_comes_back",
    "tests/session/state/test_will_record.py::test_the_format_is_the_one_on_disk",
    "tests/simulation/test_mutants.py::",
    "tests/storage/log/layouts/test_block_reader.py::test_a_call_ends_with_the_message_that_fills_it",
    "tests/storage/log/layouts/test_block_reader.py::test_a_deep_stream_is_read_in_few_calls",
    "tests/storage/log/layouts/test_block_reader.py::test_a_reader_holds_offsets_and_no_blocks",
    "tests/storage/log/layouts/test_block_reader.py::test_a_sparse_stream_is_read_without_what_lies",
    "tests/storage/log/layouts/test_block_reader.py::test_an_idle_stream_costs_a_single_look",
    "tests/storage/log/layouts/test_block_reader.py::test_sessions_at_the_same_place_share_blocks",
    "tests/storage/log/layouts/test_block_reader.py::test_sessions_with_topics_of_their_own_share",
    "tests/storage/log/layouts/test_block_reader.py::test_sessions_that_are_in_different_generations_",
    "tests/storage/log/layouts/test_filters.py::test_a_deep_stream_alone_is_read_in_few_pages",
    "tests/storage/log/layouts/test_filters.py::test_a_deep_stream_costs_idle_ones_a_single_look",
    "tests/storage/log/layouts/test_filters.py::test_what_is_read_ahead_is_bounded_whatever",
    "tests/storage/local/test_memory.py::test_a_long_run_does_not_keep_its_whole_log",
    "tests/storage/local/test_committer.py::test_a_sign_of_life_does_not_wait_for_room",
    "tests/storage/local/test_committer.py::test_a_serial_is_reported_after_the_sync_that_covers_it",
    "tests/storage/local/test_committer.py::test_a_write_that_failed_for_good_ends_all_reports",
    "tests/storage/local/test_committer.py::test_interval_reports_at_once_and_syncs_soon",
    "tests/storage/local/test_committer.py::test_what_is_requested_during_a_sync_waits_for_the_next",
    "tests/storage/local/test_committer.py::test_what_was_requested_while_the_disk_was_full",
    "tests/storage/local/salvage/test_around_damage.py::",
    "tests/session/lifetime/test_sweep.py::test_a_search_that_too_many_leave_during_ends",
    "tests/session/scheduling/test_fairness.py::test_topics_that_were_replaced_are_remembered",
)


# hypothesis generates the same examples in every run, and slow runs do not fail. `fresh` is for
# scripts/test --all: new and more examples in each run.
_BUSY = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=_BUSY
)
hypothesis.settings.register_profile(
    "fresh", max_examples=500, print_blob=True, deadline=None, suppress_health_check=_BUSY
)
hypothesis.settings.load_profile("same")

# Fixtures that start a broker as a process, or Spark: not for scripts/test --quick.
PROCESSES = frozenset(
    {"port_town", "alone", "prepare", "shared_broker", "shelf", "spark", "start_broker"}
)


def pytest_configure() -> None:
    """Draw an order of files, if one is wanted; collect tests without collecting garbage."""
    file_order.settle()
    gc.set_threshold(200_000, 100, 100)  # until all tests are known: nothing of them goes away


def pytest_report_header() -> str | None:
    """Say how to repeat it."""
    return file_order.header()


def pytest_collection_finish() -> None:
    """Take what collecting has made out of the garbage collector's sight.

    A database that is closed collects garbage. Among the objects of 9,000 tests that takes up to a
    second, and the suite closes thousands of databases. Trees of all sources are built, too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def what_a_file_leaves_is_not_looked_at_again() -> Iterator[None]:
    """Take what is left of a file (modules, results) out of the garbage collector's sight, too.

    Some files import large libraries. Databases of later files closed up to 50 times as slowly.
    """
    yield
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter clean up at its end: duckdb reports what is left as leaks."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests whose fixtures start processes; on the compiled core skip `LOOKS_INSIDE`."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if "spark" in fixtures:
            item.add_marker("ci")
        if fixtures & PROCESSES:
            item.add_marker("full")
        if COMPILED and item.nodeid.startswith(LOOKS_INSIDE):
            item.add_marker(pytest.mark.skip(reason="looks inside; runs on the sources"))
    file_order.arrange(items)
