"""The parts of a replica: what it tells, what it applies, and what it writes as leader."""
