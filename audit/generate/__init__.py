"""Synthetic histories of a broker, correct ones and ones with faults at known places.

`generate` (in `audit.generate.history`) writes segments like the exporter of a real broker, and a
manifest of every injected fault. The audit must find those and nothing else. Start reading at
`audit.generate.model`, the small broker whose rows are recorded.
"""
