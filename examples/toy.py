"""The paper's toy problem: where implicit and unrolled gradients stop, PDBO reaches the optimum.

The inner function does not see y[1], so every inner problem has a line of minimisers. Run with
`python examples/toy.py`; it prints a table and draws `toy.png` beside where it is run.
"""

import jax.numpy as jnp

import pdbo

problem = pdbo.Problem(
    f=lambda x, y: 0.5 * ((1 - y[0]) ** 2 + (x - y[1]) ** 2),  # outer
    g=lambda x, y: 0.5 * y[0] ** 2 - x * y[0],  # inner
)
solvers = {
    "PDBO": pdbo.PDBO(primal_step=0.2, dual_step=0.1, inner_step=0.5, inner_steps=5),
    "AID-FP (implicit)": pdbo.AIDFixedPoint(outer_step=0.2, inner_step=0.5, inner_steps=5),
    "ITD-R (unrolled)": pdbo.ITD(outer_step=0.2, inner_step=0.5, inner_steps=5),
}

if __name__ == "__main__":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    styles = {"PDBO": ("#0072B2", "-"), "AID-FP (implicit)": ("#D55E00", "--")}
    print(f"{'':20}{'x':>10}{'f':>12}{'eps':>12}   certified to 1e-3")
    for name, solver in solvers.items():
        sol = pdbo.solve(
            problem,
            x0=2.0,
            y0=jnp.array([0.5, 0.5]),
            solver=solver,
            steps=100,
            every=1,
            tol=0.0,
            observe=lambda x, y: {"x": x, "y": y},
        )
        eps = sol.certificate.eps
        print(f"{name:20}{float(sol.x):10.4f}{float(sol.f):12.2e}{eps:12.2e}   {eps <= 1e-3}")
        color, line = styles.get(name, ("#009E73", ":"))
        panels[0].plot(sol.history["x"], sol.history["y"][:, 1], line, color=color, label=name)
        panels[0].plot(float(sol.x), float(sol.y[1]), "o", color=color)
        panels[1].semilogy(sol.history["step"], sol.history["f"], line, color=color, label=name)
    panels[0].plot(1, 1, "k*", markersize=14, label="optimum")
    panels[0].set(xlabel="x", ylabel="y[1], invisible to the inner problem", title="paths")
    panels[0].legend()
    panels[1].set(xlabel="iteration", ylabel="f", title="outer objective")
    figure.savefig("toy.png", dpi=150)
