"""PREFORL and CPL: the stacked trainer against one written out step by step, and what each ingredient does."""

import doctest

import numpy as np
import pytest
import torch
from sparse_factory import episodes

from tasks.offline_rl import contrastive as module
from tasks.offline_rl.contrastive import CHUNK, ContrastiveConfig, Job, _Terms, preference_accuracy, train_contrastive
from tasks.offline_rl.episodes import NoNegativeTrajectories
from tasks.offline_rl.learning_data import DataStack, learning_data
from tasks.offline_rl.segments import sample_segments
from tasks.offline_rl.stacked import StackedMlp, generators_of


def data(seed=0, wins=(True, False, True, False)):
    return learning_data(episodes([20, 15, 12, 18][: len(wins)], list(wins), seed=seed))


def config(**options):
    return ContrastiveConfig(**{"updates": 6, "checkpoints": 2, "segments": 3, "k": 4, "hidden": (8,), **options})


def slow_loss(weights, ready, options, rows, noise):
    """One update of one arm, pair by pair and step by step."""

    def mu(obs):
        hidden = obs @ weights[0][0] + weights[1][0, 0]
        return torch.tanh(hidden.clamp(min=0) @ weights[2][0] + weights[3][0, 0])

    obs, action = torch.as_tensor(ready.obs), torch.as_tensor(ready.action)
    w_a, w_s = options.weights(len(ready.negative) > 0)
    total = 0.0
    for m in range(options.segments):
        plus = minus_a = minus_s = 0.0
        for t in range(options.k):
            row = rows[m * options.k + t]
            mean = mu(obs[row])
            borrowed = action[ready.neighbour[row]]

            def log_pi(a, mean=mean):
                return -((a - mean) ** 2).sum() / (2 * options.spread**2)

            scale = options.alpha * options.gamma**t
            plus = plus + scale * log_pi(action[row])
            minus_a = minus_a + scale * log_pi(action[row] + options.sigma * noise[m * options.k + t])
            minus_s = minus_s + scale * log_pi(borrowed)
        total = total + w_a * torch.log1p(torch.exp(options.bias * minus_a - plus))
        total = total + w_s * torch.log1p(torch.exp(options.bias * minus_s - plus))
    return total / options.segments


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("negatives", ["both", "action", "state"])
def test_an_update_is_the_loss_written_out(negatives, gamma):
    options, ready = config(negatives=negatives, alpha=0.3, gamma=gamma), data()
    stack, jobs = DataStack([ready]), [Job(options, 0, (0,))]
    generators = generators_of([(0,)])
    policy = StackedMlp(generators, (3, 8, 2), squash=True)
    terms = _Terms(stack, jobs, generators)
    loss, _, _ = terms(policy, 0, generators)
    rows, noise = terms.drawn[0][0, 0], terms.drawn[1][0, 0]
    torch.testing.assert_close(loss[0], slow_loss(policy.weights(), ready, options, rows.tolist(), noise), atol=1e-5, rtol=1e-5)


def test_cpl_is_the_same_loss_with_recorded_failures_in_place_of_degraded_copies():
    options, ready = config(negatives="failures", alpha=0.3, bias=0.7), data()
    generators = generators_of([(0,)])
    policy = StackedMlp(generators, (3, 8, 2), squash=True)
    terms = _Terms(DataStack([ready]), [Job(options, 0, (0,))], generators)
    loss, logit, _ = terms(policy, 0, generators)
    good, bad = terms.drawn[0][0, 0], terms.drawn[1][0, 0]
    assert set(bad.tolist()) <= set(ready.negative_rows)

    def score(rows):
        mean = policy(torch.as_tensor(ready.obs)[rows][None])[0]
        log_prob = -(torch.as_tensor(ready.action)[rows] - mean).square().sum(-1) / (2 * 0.25)
        return 0.3 * log_prob.view(3, 4).sum(1)

    expected = torch.log1p(torch.exp(0.7 * score(bad) - score(good)))
    torch.testing.assert_close(loss[0], expected.mean(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logit[0], (score(good) - 0.7 * score(bad)).mean(), atol=1e-5, rtol=1e-5)


def test_arms_do_not_disturb_each_other_in_a_stack():
    parts = [data(0), data(1)]
    jobs = [
        Job(config(), 0, (0,)),
        Job(config(bias=0.9), 1, (1,)),
        Job(config(negatives="uniform"), 1, (2,)),
        Job(config(alpha=0.2), 0, (3,)),
    ]
    together = train_contrastive(DataStack(parts), jobs)
    for p, job in enumerate(jobs):
        alone = train_contrastive(DataStack([parts[job.part]]), [Job(job.config, 0, job.seed)])
        assert sorted(together.weights) == sorted(alone.weights) == [3, 6]
        for a, b in zip(together.weights[6], alone.weights[6], strict=True):
            torch.testing.assert_close(a[p], b[0], atol=2e-6, rtol=1e-4)


def test_training_is_a_function_of_its_seed():
    runs = [train_contrastive(DataStack([data()]), [Job(config(dropout=0.2), 0, (s,))]).weights[6][0] for s in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_noise_is_fresh_in_every_update():
    options = config(updates=CHUNK + 1)
    terms = _Terms(DataStack([data()]), [Job(options, 0, (0,))], generators_of([(0,)]))
    policy = StackedMlp(generators_of([(1,)]), (3, 8, 2), squash=True)
    terms(policy, 0, terms.generators)
    first = terms.drawn[1].clone()
    terms(policy, CHUNK, terms.generators)
    assert not torch.equal(first, terms.drawn[1])
    assert not torch.equal(first[0], first[1])


def test_successes_become_likelier_and_the_logit_grows():
    options = config(updates=300, alpha=0.05, segments=8, k=8, hidden=(32,), checkpoints=1)
    history = train_contrastive(DataStack([data()]), [Job(options, 0, (0,))]).history
    series = {name: [v[0] for _, n, v in history if n == name] for name in ("loss", "logit", "log_prob")}
    assert series["log_prob"][-1] > series["log_prob"][0] + 0.1
    assert series["logit"][-1] > series["logit"][0]
    assert series["loss"][-1] < series["loss"][0]


def test_without_failures_the_method_falls_back_to_noise_and_others_are_undefined():
    stack = DataStack([data(wins=(True, True))])
    same = [train_contrastive(stack, [Job(config(negatives=n), 0, (0,))]).weights[6][0] for n in ("both", "action")]
    assert torch.equal(*same)
    for negatives, named in (("failures", "CPL"), ("state", "state degradation")):
        with pytest.raises(NoNegativeTrajectories, match=f"{named} is undefined: no failures"):
            train_contrastive(stack, [Job(config(negatives=negatives), 0, (0,))])


def test_a_stack_of_different_shapes_is_refused():
    with pytest.raises(ValueError, match="one shape, got 2"):
        train_contrastive(DataStack([data()]), [Job(config(), 0, (0,)), Job(config(k=2), 0, (0,))])


def test_accuracy_counts_segments_that_prefer_the_recorded_actions():
    action, rng = np.zeros((30, 2)), torch.Generator().manual_seed(0)
    lengths = np.array([10, 20])
    far = np.full((30, 2), 1.0)
    options = ContrastiveConfig(bias=0.5, k=4)
    assert preference_accuracy(action, action, far, lengths, options, rng) == 1.0
    assert preference_accuracy(far, action, far, lengths, options, rng) == 0.0
    middle = np.full((30, 2), 0.5)  # equally far from both: S+ < lambda S- for lambda < 1
    assert preference_accuracy(middle, action, far, lengths, options, rng) == 0.0


def test_held_out_segments_stay_inside_their_trajectory():
    # The policy is right in the first trajectory alone. Segments that mixed both would all be lost to its large errors in the second.
    action, negative = np.zeros((40, 1)), np.r_[np.ones((20, 1)), np.zeros((20, 1))]
    mean = np.r_[np.zeros((20, 1)), np.full((20, 1), 9.0)]
    options, generator = ContrastiveConfig(bias=0.5, k=8), torch.Generator().manual_seed(0)
    apart = preference_accuracy(mean, action, negative, np.array([20, 20]), options, generator, draws=400)
    assert apart == pytest.approx(0.5, abs=0.1)
    assert preference_accuracy(mean, action, negative, np.array([40]), options, generator, draws=400) < 0.05


@pytest.mark.parametrize(
    ("field", "value"), [("bias", 0.0), ("bias", 1.1), ("sigma", -0.1), ("k", 0), ("alpha", 0.0), ("action_share", 1.5), ("segments", 0)]
)
def test_impossible_settings_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        ContrastiveConfig(**{field: value})


def test_segments_are_what_the_trainer_draws():
    stack, options = DataStack([data()]), config()
    terms = _Terms(stack, [Job(options, 0, (5,))], generators_of([(5,)]))
    drawn = terms._draw()[0]
    generator = generators_of([(5,)])[0]
    slow = sample_segments(*stack.spans(0, "positive"), CHUNK * 3, 4, generator).view(CHUNK, 12)
    assert torch.equal(drawn[:, 0], slow)
