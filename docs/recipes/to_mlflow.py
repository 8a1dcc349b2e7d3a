"""Log a run to mlflow; needs mlflow."""

import jax.numpy as jnp
import mlflow

import pdbo

problem = pdbo.Problem(
    f=lambda x, y: (x - 1) ** 2 + jnp.sum((y - 1) ** 2),
    g=lambda x, y: (y[0] - x) ** 2,
)
solver = pdbo.PDBO(primal_step=0.01, dual_step=0.01, inner_step=0.1)

mlflow.set_tracking_uri("sqlite:///runs.db")  # or the address of a server
with mlflow.start_run():
    log = pdbo.callbacks.scalars(
        lambda name, value, step: mlflow.log_metric(name, value, step=step)
    )
    sol = pdbo.solve(problem, 2.0, jnp.zeros(2), solver, steps=300, callback=log)
    mlflow.log_param("result", sol.result.name)
