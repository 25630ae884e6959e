"""The adapters of the suite, and how they are found by name."""

import importlib
import importlib.util
from pathlib import Path
from typing import Final

from conformance.adapters.base import Adapter, AdapterError
from conformance.adapters.holdfast import Holdfast
from conformance.adapters.holdfast_kafka import HoldfastKafka, HoldfastTakeover
from conformance.adapters.mosquitto import Mosquitto

BUILT_IN: Final[dict[str, type[Holdfast] | type[Mosquitto]]] = {
    "holdfast": Holdfast,
    "holdfast-kafka": HoldfastKafka,
    "holdfast-takeover": HoldfastTakeover,
    "mosquitto": Mosquitto,
}


def find(name: str) -> Adapter:
    """Return the adapter `name`: a built-in one, `module:Class` or `path/to/file.py:Class`.

    Raises `AdapterError`.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    place, _, attribute = name.partition(":")
    if not attribute:
        known = ", ".join(BUILT_IN)
        raise AdapterError(
            f"unknown adapter {name!r}: it is one of {known}, MODULE:CLASS or FILE.py:CLASS"
        )
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        adapter: Adapter = getattr(module, attribute)()
    except (ImportError, OSError, SyntaxError, AttributeError, TypeError) as problem:
        raise AdapterError(f"adapter {name!r}: {problem}") from None
    lacks = [part for part in ("name", "describe", "prepare") if not hasattr(adapter, part)]
    if lacks:
        raise AdapterError(f"adapter {name!r} has no {' and no '.join(lacks)}")
    return adapter
