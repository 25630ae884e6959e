"""Made-up histories of a broker, true ones and ones with faults whose place is known.

`generate` (in `audit.generate.history`) writes segments as the exporter of a real broker would, and
a manifest of every fault put in. The audit has to find those and nothing else. Start reading at
`audit.generate.model`, the small broker whose doings are written down.
"""
