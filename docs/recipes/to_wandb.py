"""Log a run to wandb; needs wandb."""

import jax.numpy as jnp
import wandb

import pdbo

problem = pdbo.Problem(
    f=lambda x, y: (x - 1) ** 2 + jnp.sum((y - 1) ** 2),
    g=lambda x, y: (y[0] - x) ** 2,
)
solver = pdbo.PDBO(primal_step=0.01, dual_step=0.01, inner_step=0.1)

with wandb.init(project="pdbo", mode="offline") as run:  # `wandb sync` uploads it later
    log = pdbo.callbacks.scalars(lambda name, value, step: run.log({name: value}, step=step))
    sol = pdbo.solve(problem, 2.0, jnp.zeros(2), solver, steps=300, callback=log)
