"""`papers serve`: Prefect's server, a worker, every deployment, and MLflow's pages, on 127.0.0.1, until told to stop.

Everything that it starts keeps its data in the checkout (`.prefect`, `tracking`), so that a person's own Prefect and MLflow are
left alone. The worker ends first, so that it can tell the server how its runs ended.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

from flows.engine import prefect_settings, servers
from flows.engine.deployments import GPU_POOL, POOL
from flows.engine.dvc import environment
from flows.engine.execute import cores, thread_limits
from flows.engine.project import Project
from flows.engine.servers import HOST, Child, ServerError

Environment = dict[str, str]


def serve(root: Path, *, prefect_port: int = 4200, mlflow_port: int = 5000) -> int:
    """Serve until interrupted or terminated; returns the exit status.

    Args:
        root: the checkout.
        prefect_port: port of Prefect's server.
        mlflow_port: port of MLflow's pages.
    """
    children: list[Child] = []
    try:
        with prefect_settings.terminable():
            try:
                _start(root, prefect_port, mlflow_port, children)
                while True:
                    time.sleep(0.5)
                    for child in children:
                        child.check()
            except KeyboardInterrupt:
                _say("stopping")
                return 0
            finally:
                with servers.undisturbed():
                    prefect_settings.forget(root)
                    for child in reversed(children):
                        servers.stop(child)
    except ServerError as error:
        print(f"papers serve: {error}", file=sys.stderr)
        return 1


def _start(root: Path, prefect_port: int, mlflow_port: int, children: list[Child]) -> None:
    """Start everything, the worker last; `children` grows as it goes, so that whoever calls can end what there is."""
    servers.check_port(prefect_port, "Prefect", "--prefect-port")
    servers.check_port(mlflow_port, "MLflow", "--mlflow-port")
    if not (root / "prefect.yaml").is_file():
        raise ServerError(f"{root / 'prefect.yaml'} is missing; write it with `papers sync`")
    url, logs = prefect_settings.api_url(prefect_port), prefect_settings.home(root)
    prefect_settings.own(root, url)
    # MLflow's job runner (eight processes, 2 GB) serves features that are not used here.
    settings = environment(root, {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})
    _say("starting Prefect and MLflow (20 s to a minute)")
    server = servers.start("Prefect's server", prefect_settings.server_command(prefect_port), logs / "server.log", settings, root)
    children.append(server)
    _mirror(root, settings)
    mlflow = servers.start("MLflow", _mlflow_command(Project(root), mlflow_port), logs / "mlflow.log", settings, root)
    children.append(mlflow)
    servers.wait_for(server, f"{url}/health")
    _create_pools()
    _deploy(root, settings)
    side_by_side = max(1, cores() // 2)
    worker = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--limit", str(side_by_side)]
    limits = {**settings, **thread_limits(side_by_side)}
    children.append(servers.start("Prefect's worker", worker, logs / "worker.log", limits, root))
    servers.wait_for(mlflow, f"http://{HOST}:{mlflow_port}/health")
    prefect_settings.remember(root, url)
    _say(
        f"Prefect  http://{HOST}:{prefect_port}   runs, schedules (all papers every night at 03:00 UTC); logs in {logs.name}/\n"
        f"MLflow   http://{HOST}:{mlflow_port}   every stage's parameters, metrics, curves, figures\n"
        f"next: `papers run` in another terminal uses this server, or in Prefect: Deployments, `collection`, Run.\n"
        f"For the gpu profile: PREFECT_API_URL={url} prefect worker start --pool {GPU_POOL}\n"
        "Ctrl-C stops everything."
    )


def _mlflow_command(project: Project, port: int) -> list[str]:
    project.database.parent.mkdir(parents=True, exist_ok=True)
    store = f"sqlite:///{project.database.resolve()}"
    words = ["server", "--backend-store-uri", store, "--host", HOST, "--port", str(port), "--workers", "1"]
    artifacts = ["--default-artifact-root", str(project.database.resolve().parent / "artifacts"), "--no-serve-artifacts"]
    return [sys.executable, "-m", "mlflow", *words, *artifacts]


def _mirror(root: Path, settings: Environment) -> None:
    """Let MLflow show what there is, and its database exist before anything else opens it."""
    for profile in ("cpu", "gpu"):
        if (Project.here(profile, root).home / "dvc.lock").is_file():
            command = [sys.executable, "-m", "flows.engine.track", profile]
            done = subprocess.run(command, cwd=root, env=settings, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                _say(f"MLflow does not show the newest {profile} runs: {done.stderr.strip() or done.stdout.strip()}")


def _create_pools() -> None:
    """Create the two work pools, or leave them as they are."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        for name in (POOL, GPU_POOL):
            with contextlib.suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))


def _deploy(root: Path, settings: Environment) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(command, cwd=root, env=settings, capture_output=True, text=True, check=False)
    log = prefect_settings.home(root) / "deploy.log"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise ServerError(f"`prefect deploy --all` failed: {''.join(last)} ({log}); correct the flow, or run `papers sync`")


def _say(text: str) -> None:
    print(text, flush=True)
