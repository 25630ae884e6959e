"""What a node of a cluster is told, and what every mistake is answered with."""

import pytest

from broker.configuration.cluster_options import MEMBERS_MAX, ClusterOptions
from broker.configuration.load import load
from broker.configuration.options import OPTIONS
from broker.configuration.origins import rows
from broker.configuration.show import show
from tests.broker.configuration.refused import refused

KAFKA = '[storage]\nbackend = "kafka"\n[storage.kafka]\n'
WHOLE = KAFKA + 'servers = ["a:9092", "b:9092"]\nnode = "n1"\nmembers = ["n1", "n2"]\n'


def test_without_anything_the_store_is_local() -> None:
    cluster = load(environment={}).cluster
    assert not cluster.is_replicated
    assert list(cluster.problems()) == []
    config = load(environment={})
    assert (config.shell.history_cluster, config.settings.member) == (None, "")


def test_a_durability_that_would_mean_nothing_is_refused(write) -> None:  # type: ignore[no-untyped-def]
    text = refused(write(WHOLE.replace("[storage]", '[storage]\ndurability = "os"', 1)))
    assert text.startswith("storage.durability = 'os': expected 'fsync', or nothing")
    path = write(WHOLE.replace("[storage]", '[storage]\ndurability = "fsync"', 1))
    assert load(path, environment={}).cluster.is_replicated


def test_every_key_fills_an_attribute() -> None:
    attributes = {option.attribute for option in OPTIONS if option.owner == "cluster"}
    assert attributes == set(vars(ClusterOptions()))


def test_it_comes_from_the_file_and_from_the_environment(write) -> None:  # type: ignore[no-untyped-def]
    path = write(WHOLE + 'takeover = "5s"\nadvertise = "mqtt.example.org:1883"\nreplicas = 5\n')
    environment = {
        "HOLDFAST__STORAGE__KAFKA__NODE": "n2",
        "HOLDFAST__STORAGE__KAFKA__USERNAME": "u",
        "HOLDFAST__STORAGE__KAFKA__PASSWORD": "very secret",
    }
    config = load(path, environment=environment)
    cluster = config.cluster
    assert cluster.is_replicated
    assert (cluster.servers, cluster.topic) == (("a:9092", "b:9092"), "holdfast")
    assert (cluster.node, cluster.members) == ("n2", ("n1", "n2"))
    assert (cluster.takeover_ms, cluster.replicas) == (5000, 5)
    assert (cluster.advertise, cluster.password) == ("mqtt.example.org:1883", "very secret")
    assert config.origins["storage.kafka.node"] == "environment HOLDFAST__STORAGE__KAFKA__NODE"
    assert (config.shell.history_cluster, config.settings.member) == ("holdfast", "n2")
    text = show(config)
    assert "very secret" not in text
    assert "[storage.kafka]\nservers = " in text
    with open(path, encoding="utf-8") as file:
        origins = {name: origin for name, _, origin in rows(config, file.read())}
    assert origins["storage.kafka.members"] == f"file {path}, line 6"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[storage]\nbackend = "raft"', ["storage.backend = 'raft'", "local", "kafka"]),
        ("[storage]\nkafka = 1", ["storage.kafka = 1", "expected a table [storage.kafka]"]),
        ("[storage.kafka]\nserver = 1", ["'storage.kafka.server'", "mean storage.kafka.servers?"]),
        (KAFKA, ["storage.kafka.servers is missing: expected host:port"]),
        (KAFKA + 'servers = "a:1"', ["storage.kafka.node is missing"]),
        (KAFKA + 'servers = "a:1"\nnode = "n1"', ["storage.kafka.members is missing"]),
        (WHOLE + 'topic = "a b"', ["storage.kafka.topic = 'a b'", "1 to 249 letters"]),
        ('[storage.kafka]\nservers = "a"', ["storage.kafka.servers = 'a'", "host:port"]),
        ('[storage.kafka]\nnode = "a b"', ["storage.kafka.node = 'a b'", "1 to 64 letters"]),
        ('[storage.kafka]\nmembers = ["a b"]', ["storage.kafka.members", "a list of names"]),
        (
            '[storage.kafka]\nnode = "n3"\nmembers = ["n1", "n2"]',
            ["storage.kafka.node = 'n3': expected one of storage.kafka.members, n1, n2"],
        ),
        (
            '[storage.kafka]\nnode = "n1"\nmembers = ["n1", "n2"]',
            ["storage.kafka.node = 'n1' needs storage.backend = 'kafka'"],
        ),
        ('[storage.kafka]\nmembers = ["n1", "n1"]', ["storage.kafka.members: 'n1' is there twice"]),
        (
            f"[storage.kafka]\nmembers = {[f'n{n}' for n in range(MEMBERS_MAX + 1)]}",
            [f"{MEMBERS_MAX + 1} names: expected at most {MEMBERS_MAX}"],
        ),
        ('[storage.kafka]\ntakeover = "1s"', ["storage.kafka.takeover = '1s'"]),
        ("[storage.kafka]\nreplicas = 0", ["storage.kafka.replicas = 0"]),
        ('[storage.kafka]\nadvertise = "a:0"', ["storage.kafka.advertise = 'a:0'", "a port"]),
        ('[storage.kafka]\nadvertise = "a"', ["storage.kafka.advertise = 'a'", "host:port"]),
        (
            '[storage.kafka]\nusername = "u"\npassword = "p"\npassword_file = "f"',
            ["storage.kafka.password and storage.kafka.password_file: expected one"],
        ),
        ('[storage.kafka]\npassword = "p"', ["needs storage.kafka.username"]),
        ('[storage.kafka]\nusername = "u"', ["needs storage.kafka.password or password_file"]),
        ('[storage.kafka]\nsasl_mechanism = "X"', ["storage.kafka.sasl_mechanism", "PLAIN"]),
        ('[storage.kafka]\ntls_ca = "f"', ["storage.kafka.tls_ca needs storage.kafka.tls = true"]),
        ("[storage.kafka]\ntls_verify = false", ["tls_verify needs storage.kafka.tls = true"]),
        (
            '[storage.kafka]\ntls = true\ntls_key = "f"',
            ["storage.kafka.tls_key needs storage.kafka.tls_certificate"],
        ),
    ],
)
def test_a_mistake_names_the_key_and_what_was_expected(write, text, words) -> None:  # type: ignore[no-untyped-def]
    told = refused(write(text))
    for word in words:
        assert word in told


def test_a_mistake_in_the_environment_names_the_variable() -> None:
    told = refused(HOLDFAST__STORAGE__KAFKA__SERVER="a:1")
    assert "did you mean HOLDFAST__STORAGE__KAFKA__SERVERS?" in told


def test_a_key_of_another_table_is_not_looked_for_here_first(write) -> None:  # type: ignore[no-untyped-def]
    assert "did you mean auth.password_file?" in refused(write("[log]\npassword_file = 'f'\n"))
