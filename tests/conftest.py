"""What holds for every test: in the compiled tree the core really is compiled."""

import os

import broker.engine

if os.environ.get("HOLDFAST_COMPILED"):
    assert broker.engine.__file__.endswith(".so"), broker.engine.__file__
