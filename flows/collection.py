"""All papers as one flow, `flow`: what the nightly deployment runs. `papers run` does the same from a terminal."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "flow":
        from flows.engine.orchestrate import collection_flow

        return collection_flow()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
