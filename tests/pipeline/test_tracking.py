"""MLflow mirrors what DVC holds: each execution once and completely, whatever is killed or deleted on the way."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import factory
import pytest

from flows.engine import mirror, snapshot, tracking
from flows.engine.project import Project, results
from flows.engine.tracking import EXECUTION, PARENT, STAGE
from tasks.common.formats import read_json, write_json
from tests.pipeline.workspace import NODE, Workspace, alpha, declare, runs, stage_run


@pytest.fixture
def work(tmp_path, migrated, monkeypatch) -> Workspace:
    """A workspace with one paper of two stages, and an empty database."""
    return alpha(tmp_path / "work", migrated, monkeypatch)


def test_a_stage_is_shown_with_all_that_dvc_holds_of_it(work):
    mirror.mirror(work.project, flow_run_id="flow-1")
    run = stage_run(work.project, "alpha-train")
    assert run.data.params == {"lr": "0.1", "net.width": "8", "net.layers": "[1, 2]", "package.numpy": "2.4.6"}
    assert run.data.metrics == {"ours": 3.5, "loss": 1 / 46, "timing.seconds": 2.5, "timing.steps_per_s": 4.0}
    (execution,) = runs(work.project, EXECUTION)
    _, deps, outs = snapshot.key_of("alpha-train", work.entries["alpha-train"])
    expected = {"dvc.stage": "alpha-train", "dvc.deps_md5": deps, "dvc.outs_md5": outs, "profile": "cpu", "scale": "toy", "seed": "7",
                "outcome": "executed", "paper": "alpha", "prefect.flow_run_id": "flow-1", PARENT: execution.info.run_id}  # fmt: skip
    assert expected.items() <= run.data.tags.items()
    assert len(run.data.tags["dvc.cmd_md5"]) == 32
    assert run.data.tags["mlflow.source.name"] == NODE
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", 1_700_000_000_000, 1_700_000_002_500)
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("alpha/prepare", work.entries["alpha-train"]["deps"][0]["md5"])


def test_curves_keep_their_steps_and_figures_are_artifacts(work):
    mirror.mirror(work.project)
    client = tracking.connect(work.project)
    run = stage_run(work.project, "alpha-train")
    curve = client.get_metric_history(run.info.run_id, "loss")
    assert [(m.step, m.value) for m in curve] == [(s, 1.0 / (s + 1)) for s in range(0, 50, 5)]
    assert [a.path for a in client.list_artifacts(run.info.run_id, "figures")] == ["figures/line.png"]
    assert list(tracking.artifacts(work.project).rglob("line.png"))


def test_the_execution_shows_the_claims(work):
    mirror.mirror(work.project)
    (execution,) = runs(work.project, EXECUTION)
    client = tracking.connect(work.project)
    assert execution.data.metrics == {"claim.large": 3.5, "claims.verified": 1.0, "claims.not_reproduced": 0.0, "claims.inconclusive": 0.0}
    (claim,) = read_json(Path(client.download_artifacts(execution.info.run_id, "claims.json")))["claims"]
    assert (claim["id"], claim["verdict"], claim["scale"]) == ("large", "verified", "toy")
    assert "<td>verified</td>" in Path(client.download_artifacts(execution.info.run_id, "claims.html")).read_text()
    assert "It is large \\| very." in execution.data.tags["mlflow.note.content"]


def test_trap_9_a_second_pass_logs_nothing(work):
    first = mirror.mirror(work.project)
    before = [(r.info.run_id, r.info.status, r.info.end_time) for kind in (STAGE, EXECUTION) for r in runs(work.project, kind)]
    second = mirror.mirror(work.project)
    assert set(first.logged) == {"alpha-prepare", "alpha-train"}
    assert (second.logged, second.stages) == ({}, first.stages)
    assert [(r.info.run_id, r.info.status, r.info.end_time) for kind in (STAGE, EXECUTION) for r in runs(work.project, kind)] == before


def test_only_what_changed_gets_a_new_run_under_a_new_execution(work):
    work.put("beta", "train")
    mirror.mirror(work.project)
    work.put("alpha", "train", metrics={"ours": 4.5}, needs=["alpha/prepare"])
    done = mirror.mirror(work.project)
    assert set(done.logged) == {"alpha-train"}
    assert sorted(r.data.tags["paper"] for r in runs(work.project, EXECUTION)) == ["alpha", "alpha", "beta"]
    assert {r.data.metrics["ours"] for r in runs(work.project, where="tags.`dvc.stage` = 'alpha-train'")} == {3.5, 4.5}


def test_what_was_seen_before_is_not_logged_again_when_it_comes_back(work):
    mirror.mirror(work.project)
    work.put("alpha", "prepare", metrics={"rows": 5})
    mirror.mirror(work.project)
    work.put("alpha", "prepare", metrics={"rows": 4}, executed=False)
    assert mirror.mirror(work.project).logged == {}
    assert len(runs(work.project, where="tags.`dvc.stage` = 'alpha-prepare'")) == 2


def test_trap_8_a_restored_stage_has_one_run_without_timings(work, monkeypatch):
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "flow-2")
    work.put("alpha", "train", metrics={"ours": 3.5}, executed=False)
    write_json(work.root / "data/alpha/train.timings.json", {"seconds": 99.0})
    mirror.mirror(work.project)
    run = stage_run(work.project, "alpha-train")
    assert run.data.metrics == {"ours": 3.5}
    assert run.data.tags["outcome"] == "restored"
    assert "seed" not in run.data.tags
    assert run.data.tags["prefect.flow_run_id"] == "flow-2"


def test_the_record_of_another_execution_does_not_count(work):
    out = work.put("alpha", "train", metrics={"ours": 3.5}, params={"lr": 0.1})
    record = read_json(out.with_name("train.run.json"))
    write_json(out.with_name("train.run.json"), {**record, "params": {"alpha.cpu.train": {"lr": 0.2}}})
    mirror.mirror(work.project)
    assert stage_run(work.project, "alpha-train").data.tags["outcome"] == "restored"


def test_trap_19_what_is_not_finite_is_left_out_and_the_rest_is_logged(work):
    work.put("alpha", "train", metrics={"ours": None, "other": 2.0}, history=[(0, "loss", 1.0), (1, "loss", float("nan"))])
    write_json(work.root / results("alpha"), {"stages": {"alpha-train": {"ours": None}}})
    mirror.mirror(work.project)
    run = stage_run(work.project, "alpha-train")
    assert {k: v for k, v in run.data.metrics.items() if not k.startswith("timing.")} == {"other": 2.0, "loss": 1.0}
    (execution,) = runs(work.project, EXECUTION)
    assert execution.data.metrics["claims.inconclusive"] == 1.0


DEATHS = {
    "create_run": (1, 2),
    "log_batch": (1, 3),
    "log_inputs": (2,),
    "log_artifact": (1, 2),
    "log_dict": (1,),
    "set_terminated": (1, 3, 6),
}


@pytest.mark.parametrize(("call", "nth"), [(call, nth) for call, times in DEATHS.items() for nth in times])
def test_a_pass_that_is_killed_anywhere_leaves_nothing_that_counts_twice(work, monkeypatch, call, nth):
    from mlflow import MlflowClient

    work.put("alpha", "evaluate", needs=["alpha/train"], figures=["a"])
    work.put("beta", "train", needs=["alpha/train"])
    real, seen = getattr(MlflowClient, call), []

    def dying(self, *args, **options):
        seen.append(call)
        if len(seen) == nth:
            raise KeyboardInterrupt
        return real(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, call, dying)
        with pytest.raises(KeyboardInterrupt):
            mirror.mirror(work.project)
    mirror.mirror(work.project)
    found = runs(work.project)
    assert sorted(r.data.tags["dvc.stage"] for r in found) == ["alpha-evaluate", "alpha-prepare", "alpha-train", "beta-train"]
    executions = {r.info.run_id: r for r in runs(work.project, EXECUTION)}
    assert {r.info.status for r in [*found, *executions.values()]} == {"FINISHED"}
    assert {r.data.tags[PARENT] for r in found} == set(executions)
    assert sorted(r.data.tags["paper"] for r in executions.values()) == ["alpha", "beta"]
    assert stage_run(work.project, "alpha-train").data.metrics["ours"] == 3.5
    assert mirror.mirror(work.project).logged == {}


def test_passes_at_the_same_time_log_every_stage_once(work):
    with ThreadPoolExecutor(4) as pool:
        done = [future.result() for future in [pool.submit(mirror.mirror, work.project) for _ in range(4)]]
    assert sorted(name for one in done for name in one.logged) == ["alpha-prepare", "alpha-train"]
    assert len(runs(work.project)) == 2
    assert len(runs(work.project, EXECUTION)) == 1


def test_a_deleted_run_is_logged_again(work):
    mirror.mirror(work.project)
    tracking.connect(work.project).delete_run(stage_run(work.project, "alpha-train").info.run_id)
    assert set(mirror.mirror(work.project).logged) == {"alpha-train"}
    assert stage_run(work.project, "alpha-train").data.metrics["ours"] == 3.5


def test_a_deleted_experiment_is_taken_back_from_the_bin(work):
    mirror.mirror(work.project)
    client = tracking.connect(work.project)
    client.delete_experiment(tracking.experiments(client)["alpha"].experiment_id)
    work.put("alpha", "prepare", metrics={"rows": 9})
    mirror.mirror(work.project)
    assert "alpha" in tracking.experiments(client)
    assert {r.data.metrics["rows"] for r in runs(work.project, where="tags.`dvc.stage` = 'alpha-prepare'")} >= {9.0}


def test_a_stage_that_is_not_here_is_skipped(work):
    shutil.rmtree(work.root / "data/alpha/train")
    assert set(mirror.mirror(work.project).stages) == {"alpha-prepare"}


def test_a_folder_that_dvc_has_not_recorded_is_skipped_until_it_is(work):
    metrics = work.root / "data/alpha/train/metrics.json"
    work.listing("data/alpha/train", {"metrics.json": "0" * 32})
    assert set(mirror.mirror(work.project).stages) == {"alpha-prepare"}
    work.listing("data/alpha/train", {"metrics.json": snapshot.md5(metrics)})
    assert set(mirror.mirror(work.project).logged) == {"alpha-train"}


def test_profiles_share_a_database_and_are_told_apart(work, monkeypatch):
    smoke = Workspace(work.root, "smoke")
    smoke.values = work.values
    smoke.put("alpha", "train", metrics={"ours": 0.5})
    declare(monkeypatch, work, smoke)
    mirror.mirror(work.project)
    assert set(mirror.mirror(smoke.project).logged) == {"alpha-train"}
    assert mirror.mirror(work.project).logged == {}
    (run,) = runs(work.project, where="tags.profile = 'smoke'")
    assert (run.data.metrics["ours"], run.data.tags["scale"]) == (0.5, "toy")
    assert "lr" not in run.data.params


def test_git_tags_tell_a_clean_checkout_from_one_with_edits(work):
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    assert snapshot.git_state(work.root) == {"git.commit": "none", "git.dirty": "unknown"}
    for words in (["init", "-q"], ["add", "params.yaml"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], cwd=work.root, check=True)
    (work.root / "dvc.lock").write_text("schema: '2.0'\n")
    state = snapshot.git_state(work.root)
    assert len(state["git.commit"]) == 40
    assert state["git.dirty"] == "true"  # environment.yaml is not committed yet
    subprocess.run([*git, "add", "environment.yaml"], cwd=work.root, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "y"], cwd=work.root, check=True)
    assert snapshot.git_state(work.root)["git.dirty"] == "false"  # dvc.lock is a record, not a source
    (work.root / "params.yaml").write_text("alpha: {}\n")
    assert snapshot.git_state(work.root)["git.dirty"] == "true"


def test_a_final_metric_named_like_a_curve_is_what_the_run_shows(work):
    work.put("alpha", "train", metrics={"loss": 7.0}, history=[(0, "loss", 3.0), (10, "loss", 2.0)])
    mirror.mirror(work.project)
    assert stage_run(work.project, "alpha-train").data.metrics["loss"] == 7.0


def test_odd_names_long_values_and_many_of_them_go_in(work):
    params = {f"p{i}": i for i in range(230)} | {"long": "x" * 9000}
    metrics = {f"m{i}@[k=1]/../x": float(i) for i in range(1100)}
    work.put("alpha", "train", params=params, metrics=metrics)
    mirror.mirror(work.project)
    run = stage_run(work.project, "alpha-train")
    assert run.data.metrics["m1099__k_1_/x"] == 1099.0
    assert run.data.params["p229"] == "229"
    assert len(run.data.params["long"]) == 6000


def test_long_histories_are_thinned_and_end_where_they_end(work):
    work.put("alpha", "train", history=[(s, "loss", float(s)) for s in range(25_001)])
    mirror.mirror(work.project)
    curve = tracking.connect(work.project).get_metric_history(stage_run(work.project, "alpha-train").info.run_id, "loss")
    assert len(curve) <= mirror.POINTS_PER_CURVE + 1
    assert {m.step == m.value for m in curve} == {True}
    assert (min(m.step for m in curve), max(m.step for m in curve)) == (0, 25_000)


def test_only_some_papers_can_be_mirrored(work):
    work.put("beta", "train")
    assert set(mirror.mirror(work.project, ["beta"]).logged) == {"beta-train"}


NODES = ["alpha-evaluate", "alpha-prepare", "alpha-train", "beta-evaluate", "beta-prepare", "beta-train", "shared-base"]


@pytest.mark.e2e
def test_trap_8_and_9_a_bare_repro_ends_with_one_run_per_stage_executed_or_restored(toy):
    project = Project(toy)
    assert sorted(r.data.tags["dvc.stage"] for r in runs(project)) == NODES
    assert {r.data.tags["outcome"] for r in runs(project)} == {"executed"}
    assert {r.data.tags["paper"]: r.data.metrics.get("claims.verified") for r in runs(project, EXECUTION)} == {
        "alpha": 2.0, "beta": 2.0, "shared": None}  # fmt: skip
    assert "up to date" in factory.dvc(toy, "repro").stdout
    shown = (toy / "tracking/mirror.json").read_bytes()

    shutil.rmtree(toy / "data")
    factory.dvc(toy, "checkout")
    (toy / "tracking/mirror.json").unlink()
    assert "Running stage 'track'" in factory.dvc(toy, "repro").stdout
    assert sorted(r.data.tags["dvc.stage"] for r in runs(project)) == NODES

    shutil.rmtree(toy / "tracking")
    factory.dvc(toy, "repro")
    assert sorted(r.data.tags["dvc.stage"] for r in runs(project)) == NODES
    assert {r.data.tags["outcome"] for r in runs(project)} == {"restored"}
    assert (toy / "tracking/mirror.json").read_bytes() == shown
