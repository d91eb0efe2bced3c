from __future__ import annotations

import json
import socket
import urllib.request

import factory
import pytest
import running
import yaml

from flows.engine import registry
from flows.engine.deployments import render_prefect_yaml


def test_every_paper_has_a_deployment_and_the_collection_a_nightly_one():
    papers = registry.papers()
    content = yaml.safe_load(render_prefect_yaml(papers.values()))
    entries = {entry["name"]: entry for entry in content["deployments"]}
    assert set(entries) == {"collection"} | set(papers) | {f"{slug}-gpu" for slug in papers}
    nightly = entries["collection"]
    assert nightly["schedules"] == [{"cron": "0 3 * * *", "timezone": "UTC", "active": True}]
    assert nightly["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    for slug in papers:
        assert (factory.ROOT / f"flows/{slug}.py").is_file()
        assert entries[slug]["entrypoint"] == entries[f"{slug}-gpu"]["entrypoint"] == f"flows/{slug}.py:flow"
        assert "schedules" not in entries[slug]
        assert entries[slug]["work_pool"] == {"name": "local"}
        assert entries[f"{slug}-gpu"]["work_pool"] == {"name": "gpu"}
        assert entries[f"{slug}-gpu"]["parameters"] == {"profile": "gpu"}
    assert str(factory.ROOT) not in render_prefect_yaml(papers.values())


@pytest.mark.parametrize("option", ["--prefect-port", "--mlflow-port"])
def test_a_taken_port_is_named_before_anything_starts(fresh, option):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other = {"--prefect-port": "--mlflow-port", "--mlflow-port": "--prefect-port"}[option]
        port = str(taken.getsockname()[1])
        done = factory.papers_command(fresh, "serve", option, port, other, str(running.free_port()), check=False)
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert option in done.stderr
    assert "Traceback" not in done.stderr
    assert not (fresh / ".prefect/prefect.db").exists()


@pytest.mark.e2e
@pytest.mark.xdist_group("prefect")
def test_a_deployment_runs_to_its_end_on_the_worker(served):
    done = factory.run(served.folder, "prefect", "deployment", "run", "alpha/alpha", "--watch", PREFECT_API_URL=served.api)
    assert "'Completed'" in done.stdout, done.stdout
    scorecard = json.loads((served.folder / "report/scorecard.json").read_text())
    assert {claim["verdict"] for paper in scorecard["papers"] if paper["slug"] == "alpha" for claim in paper["claims"]} == {"verified"}
    run = served.flow_run("alpha")
    assert run["state_type"] == "COMPLETED"
    tasks = served.ask("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
    tags = {task["name"]: set(task["tags"]) for task in tasks}
    assert set(tags) == {"shared-base", "alpha-prepare", "alpha-train", "alpha-evaluate", "alpha-results", "scorecard", "track"}
    assert tags["alpha-train"] == {"paper:alpha", "cpu"}
    messages = {task["name"]: task["state"]["message"] for task in tasks}
    assert messages["alpha-train"] == "executed"
    artifacts = served.ask("artifacts/filter", artifacts={"flow_run_id": {"any_": [run["id"]]}})
    assert {artifact["key"] for artifact in artifacts} == {"claims-alpha", "report-alpha"}
    logs = served.ask("logs/filter", logs={"flow_run_id": {"any_": [run["id"]]}}, limit=200)
    assert any("alpha-prepare: done in" in log["message"] for log in logs)

    nightly = served.ask("deployments/filter", deployments={"name": {"any_": ["collection"]}})[0]
    assert nightly["schedules"][0]["schedule"]["cron"] == "0 3 * * *"
    assert nightly["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert nightly["global_concurrency_limit"]["limit"] == 1


@pytest.mark.e2e
@pytest.mark.xdist_group("prefect")
def test_serving_says_where_and_keeps_to_the_checkout(served):
    assert served.prefect in served.output
    assert served.mlflow in served.output
    with urllib.request.urlopen(f"{served.mlflow}/health", timeout=30) as reply:
        assert reply.status == 200
    with urllib.request.urlopen(served.prefect, timeout=30) as reply:
        assert "<html" in reply.read().decode().lower()
    assert (served.folder / ".prefect/prefect.db").is_file()
    assert (served.folder / "tracking/mlflow.db").is_file()
    assert not (served.folder / ".home/.prefect").exists()
    assert factory.run(served.folder, "git", "status", "--porcelain", "--", ".prefect", "tracking").stdout == ""


@pytest.mark.e2e
@pytest.mark.xdist_group("prefect")
def test_a_run_by_hand_uses_the_server_that_is_there(served):
    done = factory.papers_command(served.folder, "run", "--workers", "2")
    assert "starting Prefect" not in done.stderr
    assert served.flow_run("collection")["state_type"] == "COMPLETED"
    assert served.flow_run("collection")["parameters"] == {"profile": "cpu", "workers": 2}
    assert factory.papers_command(served.folder, "run").stdout.startswith("cpu profile: 11 up-to-date")
