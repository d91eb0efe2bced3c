"""Stages that several papers depend on. A paper refers to one by `Stage("warmstart", shared="<name>")`."""

from flows.engine.declare import Stage

stages: list[Stage] = []
