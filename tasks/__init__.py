"""Reusable nodes and methods, one folder per domain; nothing here knows an orchestrator or a tracker."""
