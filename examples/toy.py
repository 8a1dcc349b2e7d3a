"""The paper's toy problem: PDBO reaches the optimum, implicit and unrolled gradients do not.

The inner function does not depend on y[1], so every inner problem has a line of minimisers. Run
`python examples/toy.py`; it prints a table and draws `toy.png` in the current folder.

Figure: left, the paths in the plane of x and y[1]; right, f along the iterations. The paths of the
two rivals coincide.
"""

import jax.numpy as jnp

import pdbo

problem = pdbo.Problem(
    f=lambda x, y: 0.5 * ((1 - y[0]) ** 2 + (x - y[1]) ** 2),  # outer
    g=lambda x, y: 0.5 * y[0] ** 2 - x * y[0],  # inner
)
x0, y0 = 2.0, jnp.array([0.5, 0.5])  # the start; `pdbo solve examples/toy.py:problem` uses it, too
solvers = {
    "PDBO": pdbo.PDBO(primal_step=0.2, dual_step=0.1, inner_step=0.5, inner_steps=5),
    "AID-FP (implicit)": pdbo.solvers.AIDFixedPoint(outer_step=0.2, inner_step=0.5, inner_steps=5),
    "ITD-R (unrolled)": pdbo.solvers.ITD(outer_step=0.2, inner_step=0.5, inner_steps=5),
}

COLORS = {"PDBO": "#0072B2", "AID-FP (implicit)": "#D55E00", "ITD-R (unrolled)": "#009E73"}
LINES = {"PDBO": "-", "AID-FP (implicit)": "--", "ITD-R (unrolled)": ":"}


def main(path: str = "toy.png") -> dict:
    """Run the three solvers from the start, print where they end and draw their paths."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    paths, curves = figure.subplots(1, 2)
    found = {}
    print(f"{'':20}{'x':>10}{'f':>12}{'eps':>12}")
    for name, solver in solvers.items():
        sol = pdbo.solve(
            problem, x0, y0, solver, steps=100, every=1, tol=0.0,
            observe=lambda x, y: {"x": x, "y": y},
        )  # fmt: skip
        found[name] = {"x": float(sol.x), "f": float(sol.f), "eps": float(sol.certificate.eps)}
        print(f"{name:20}{sol.x:10.4f}{sol.f:12.2e}{sol.certificate.eps:12.2e}")
        style = {"color": COLORS[name], "linestyle": LINES[name], "linewidth": 2}
        paths.plot(sol.history["x"], sol.history["y"][:, 1], label=name, **style)
        paths.plot(sol.x, sol.y[1], "o", color=COLORS[name])
        curves.semilogy(sol.history["step"], sol.history["f"], label=name, **style)
    paths.plot(1, 1, "k*", markersize=14, label="optimum")
    paths.set(xlabel="x", ylabel="y[1], invisible to the inner problem", title="paths")
    paths.legend()
    curves.set(xlabel="iteration", ylabel="f", title="outer objective")
    figure.savefig(path, dpi=150)
    return found


if __name__ == "__main__":
    main()
