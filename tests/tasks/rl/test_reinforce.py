import numpy as np
import torch
from toy_corridor import policy

from tasks.rl.ppo import Batch
from tasks.rl.reinforce import reinforce_update


def test_one_step_of_plain_descent_is_the_policy_gradient():
    p, twin = policy(), policy()
    rng = np.random.default_rng(0)
    seen, action, advantage = rng.integers(0, 9, 30), rng.integers(0, 2, 30), rng.normal(size=30)
    batch = Batch(seen, action, p.behaviour(seen), advantage, np.ones(30), np.zeros(30))
    optimisers = tuple(torch.optim.SGD(n.parameters(), lr=0.1) for n in (p.actor, p.critic))
    told = reinforce_update(p, optimisers, batch, rng, norm=1e9)
    gain = sum(twin.logits(seen[i : i + 1]).log_softmax(-1)[0, action[i]] * advantage[i] for i in range(30)) / 30
    gain.backward()
    for ours, other in zip(p.actor.parameters(), twin.actor.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), other.detach() + 0.1 * other.grad, atol=1e-5, rtol=1e-4)
    assert told["updates"] == 1


def test_the_critic_may_take_steps_of_its_own_that_leave_the_actor():
    p, twin = policy(), policy()
    rng = np.random.default_rng(0)
    seen = rng.integers(0, 9, 40)
    batch = Batch(seen, seen % 2, p.behaviour(seen), np.ones(40), np.ones(40), np.ones(40))
    ends = []
    for student, epochs in ((p, 1), (twin, 6)):
        optimisers = tuple(torch.optim.Adam(n.parameters(), lr=0.01) for n in (student.actor, student.critic))
        reinforce_update(student, optimisers, batch, np.random.default_rng(0), critic_epochs=epochs, minibatch=10)
        ends.append(np.square(student.appraise(seen) - 1).mean())
    assert ends[1] < ends[0]
    torch.testing.assert_close(list(p.actor.parameters()), list(twin.actor.parameters()))
