from __future__ import annotations

from tasks.masked_diffusion.arms import REFERENCE, baseline_arms, lsp_arms, standard_arms
from tasks.masked_diffusion.prefix_schedule import LspParams


def test_every_ablation_turns_its_switch_and_no_other():
    base = LspParams(window=4, alpha=0.2)
    arms = lsp_arms(base)
    switches = {
        "lsp_wide": {"beta"},
        "lsp_tau3": {"tau_min"},
        "fixed_tau": {"rule"},
        "no_snap": {"window"},
        "no_cache": {"cache"},
        "no_stability": {"stability"},
        "no_stability_wide": {"stability", "beta"},
        "scattered": {"topology", "cache"},
        "literal": {"tau_min"},
        "literal_nostab": {"tau_min", "stability"},
        "keep_draft": {"keep_draft"},
    }
    assert arms["lsp"] == base
    assert set(arms) == {"lsp", *switches}
    for name, turned in switches.items():
        mine, theirs = arms[name].model_dump(), base.model_dump()
        assert {key for key in mine if mine[key] != theirs[key]} == turned, name


def test_baselines_stand_beside_it():
    arms = baseline_arms(8)
    assert arms[REFERENCE].speedup == 1
    assert {arms[n].cache for n in arms if n.startswith("threshold")} == {"none", "prefix", "dual"}
    assert not set(arms) & set(lsp_arms(LspParams()))
    assert set(standard_arms(LspParams(), 8)) == {*arms, *lsp_arms(LspParams())}
