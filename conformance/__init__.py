"""A black-box conformance suite for MQTT 3.1.1 and 5.0 brokers.

It has one function per normative statement (`v311/`, `v50/`), a raw client that can send invalid
packets (`wire`, `client`), a strict parser of what a broker sends (`packets`, `rules`), and
adapters that start, stop, kill and configure a broker (`adapters/`). Must never import another
package of this repository: the suite reaches the broker under test over sockets only. Read next:
`conformance.check` (what a check looks like) and `conformance.runner` (how checks are run).
"""
