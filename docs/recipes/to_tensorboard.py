"""Log a run to tensorboard; needs tensorboardX."""

import jax.numpy as jnp
from tensorboardX import SummaryWriter

import pdbo

problem = pdbo.Problem(
    f=lambda x, y: (x - 1) ** 2 + jnp.sum((y - 1) ** 2),
    g=lambda x, y: (y[0] - x) ** 2,
)
solver = pdbo.PDBO(primal_step=0.01, dual_step=0.01, inner_step=0.1)

with SummaryWriter("runs") as writer:
    log = pdbo.callbacks.scalars(writer.add_scalar)
    sol = pdbo.solve(problem, 2.0, jnp.zeros(2), solver, steps=300, callback=log)
# then: tensorboard --logdir runs
