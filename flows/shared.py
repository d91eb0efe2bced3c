"""Stages that several papers depend on. A paper refers to one by `Stage("warmstart", shared="<name>")`."""

from flows.engine.declare import Stage

stages: list[Stage] = [
    Stage(
        "smollm2",
        "tasks.language_models.smollm2:prepare",
        budget_min=5,
        metrics=["model.{parameters_m,layers,vocabulary,probe_nats}"],
    ),
]
