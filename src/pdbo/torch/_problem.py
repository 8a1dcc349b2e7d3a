# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# PyTorch need not be installed where types are checked.
"""The bilevel problem with f and g in PyTorch."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array, PyTree

from .. import _trees as trees
from .._checks import traced
from .._errors import ProblemError
from .._problem import Gradients, Problem, checked_callable
from .._solution import Solution
from ..sets import Free, Set
from ._batches import TorchBatches
from ._check import check_functions, check_layers
from ._direct import Direct
from ._functions import Reader, TorchFunction
from ._host import host_call
from ._round import round_of
from ._sides import Side, check_pair

S = TypeVar("S", bound=Solution)


def problem(
    f: Callable,
    g: Callable,
    data: PyTree = None,
    x_set: Set | None = None,
    y_set: Set | None = None,
) -> "TorchProblem":
    r"""A problem for `pdbo.solve` and all the rest, with f and g written in PyTorch.

    Arguments:
        f: the outer function, called as `f(x, y)`, or `f(x, y, data)` if data is given; returns a
            scalar tensor.
        g: the inner function, called the same way.
        data: tensors, containers of tensors or whatever else the functions take; or
            `pdbo.torch.batches(...)`, and each function is called with a mini-batch of its own.
            Floating tensors are handed over in the precision of x and y.
        x_set, y_set: closed convex sets for x and y.

    The start says what x and y are: x0 and y0 are tensors, dicts, lists or tuples of tensors, or a
    `torch.nn.Module`. For a module the functions get the module itself, with the point's numbers as
    its parameters; those that require gradients are the unknowns, the others and the buffers stay
    as they are. The answers `solution.x` and `solution.y` are tensors of the start's dtype and on
    its device, by parameter name for a module: `pdbo.torch.load_into(module, solution.y)`.

    Values and gradients come from autograd, products with second derivatives from a second
    backward pass. On a CPU both sides use the same memory; for a GPU x, y and gradients are copied
    at every call, and data stay where they are. The tensors x and y are valid during a call only.
    """
    return TorchProblem(f, g, data, x_set, y_set)


def load_into(module: torch.nn.Module, answer: Mapping[str, torch.Tensor]) -> None:
    """Set the parameters of a module to `solution.x` or `solution.y`."""
    if not isinstance(answer, Mapping):
        raise ProblemError(
            f"answer must be the x or y of a module's solution, got {type(answer).__name__}."
        )
    missing, unknown = module.load_state_dict(dict(answer), strict=False)
    trained = {n for n, p in module.named_parameters() if p.requires_grad}
    wrong = [*unknown, *sorted(trained & set(missing))]
    if wrong:
        raise ProblemError(f"the answer belongs to another module: {wrong[0]} is not in both.")


class _Bindings:
    """The functions of a problem, and what was made of them for each kind of x and y."""

    def __init__(self, f: Callable, g: Callable, readers: tuple[Reader, Reader], rows: list):
        self.calls, self.readers, self.rows = (f, g), readers, rows
        self.made: dict[tuple, tuple[TorchFunction, TorchFunction]] = {}
        self.fit: set[tuple] = set()  # what has been checked
        self.last: tuple[TorchFunction, TorchFunction] | None = None
        self.direct: Direct | None = None

    def sides(self, x0: PyTree, y0: PyTree) -> tuple[Side, Side]:
        """What x and y are; parameters by name stand for the module used last."""
        known = [None, None] if self.last is None else self.last[0].sides
        x, y = (
            k if k is not None and k.fits(given) else Side(name, given)
            for k, name, given in zip(known, "xy", (x0, y0), strict=True)
        )
        check_pair(x, y)
        return x, y

    def bind(self, x0: PyTree, y0: PyTree) -> tuple[TorchFunction, TorchFunction]:
        """The two functions for a start, checked there."""
        sides = x, y = self.sides(x0, y0)
        key = (x.key, y.key)
        if key not in self.made:
            self.made[key] = tuple(  # type: ignore
                TorchFunction(name, call, read, sides)
                for name, call, read in zip("fg", self.calls, self.readers, strict=True)
            )
        self.last = functions = self.made[key]
        check_layers(x)
        check_layers(y)
        tree = (x.arrays(x0), y.arrays(y0))
        leaves, structure = jax.tree.flatten(tree)
        if (seen := (key, structure, tuple(leaf.shape for leaf in leaves))) not in self.fit:
            point = [torch.tensor(leaf, dtype=x.dtype, device=x.device) for leaf in leaves]
            check_functions(functions, structure, point, self.rows)
            self.fit.add(seen)
        return functions


class _Unbound:
    """A function before it is known what x and y are."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, x: PyTree, y: PyTree, *_: object) -> None:
        raise ProblemError("it is not known what x and y are in PyTorch: give x0 and y0.")


class TorchProblem(Problem):
    """See `problem`."""

    bindings: _Bindings = eqx.field(static=True)

    def __init__(self, f: Callable, g: Callable, data: PyTree, x_set: Any, y_set: Any):
        for name, call in (("f", f), ("g", g)):
            checked_callable(name, call, data is not None)
        streamed = isinstance(data, TorchBatches)
        given = data if streamed else None
        super().__init__(_Unbound("f"), _Unbound("g"), None, x_set, y_set)
        self.data = given
        if streamed:
            readers = tuple(r.read for r in data.readers)
            rows = [[np.arange(n)] for n in (data.outer.size, data.inner.size)]
        else:
            readers, rows = (_Whole(data).read,) * 2, [[], []]
        self.bindings = _Bindings(f, g, readers, rows)  # type: ignore

    @property
    def sources(self) -> list:
        """The two functions, which may fail in the middle of a run."""
        return [s for s in (self.f, self.g) if isinstance(s, TorchFunction)]

    def entered(self, x0: PyTree, y0: PyTree) -> tuple[Problem, PyTree, PyTree]:
        """The problem for this kind of x and y, and the start as arrays."""
        made = self.bindings
        if x0 is None and y0 is None:
            functions = made.last or (self.f, self.g)
            return _bound(self, functions), None, None
        if x0 is None or y0 is None or self._are_arrays(x0, y0):
            return self, x0, y0  # a start that is missing is refused by the caller
        functions = made.bind(x0, y0)
        x, y = functions[0].sides
        return _bound(self, functions), x.arrays(x0), y.arrays(y0)

    def _are_arrays(self, x: PyTree, y: PyTree) -> bool:
        """Whether a point has been entered before."""
        leaves = jax.tree.leaves((x, y))
        return isinstance(self.f, TorchFunction) and all(map(eqx.is_array, leaves))

    def arrays(self, x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        """Points of a kind that is known, as arrays."""
        sides = self.f.sides  # type: ignore
        return sides[0].arrays(x), sides[1].arrays(y)

    def is_known(self, name: str, x: PyTree, y: PyTree) -> bool:
        """Whether "f" or "g" was seen to return a scalar of a point's dtype."""
        function = self.f if name == "f" else self.g
        if self.in_batches or not isinstance(function, TorchFunction) or traced(x, y):
            return False
        leaves, structure = jax.tree.flatten((x, y))
        dtype = trees.dtype((x, y))
        seen = dtype == np.float64 or function.sides[0].dtype == torch.float32
        if not seen or (dtype == np.float64 and function.single):
            return False
        return (structure, tuple(leaf.shape for leaf in leaves)) in function.checked

    def direct(self, x: PyTree, y: PyTree) -> Direct | None:
        """What the exact path asks in place of JAX; the same for the whole of a run."""
        functions = (self.f, self.g)
        if not all(isinstance(function, TorchFunction) for function in functions):
            return None
        made = self.bindings
        if made.direct is None or not made.direct.serves(functions, x, y):
            made.direct = Direct(functions, x, y)  # type: ignore
        return made.direct

    def gradients(
        self, x: PyTree, y: PyTree, start: PyTree, steps: int, step: Array, smoothing: Array
    ) -> Gradients | None:
        """The gradients of a step in one call of the host, unless inner steps need projections."""
        view = self.view
        bound = isinstance(self.f, TorchFunction)
        if not bound or view.in_batches or not isinstance(self.y_set, Free):
            return None

        def numbers_of(x: PyTree, y: PyTree, *numbers: Any) -> Any:
            return numbers

        rows = tuple(value(numbers_of, x, y) for value in (view.value_f, view.value_g))
        return round_of((self.f, self.g), (x, y), start, steps, (step, smoothing), rows)  # type: ignore

    def left(self, solution: S) -> S:
        """The solution with x and y as tensors, outside of jit and vmap."""
        self.bindings.direct = None  # its graphs are as large as f and g
        if not isinstance(self.f, TorchFunction) or traced(solution.x, solution.y):
            return solution
        x, y = self.f.sides
        changes: dict[str, Any] = {"x": x.tensors(solution.x), "y": y.tensors(solution.y)}
        every = getattr(solution, "all", None)
        if every is not None:
            changes["all"] = self.left(every)
        return dataclasses.replace(solution, **changes)

    def observer(self, observe: Callable | None) -> Callable | None:
        """A function of the user's that looks at x and y as tensors, for the compiled loop."""
        if observe is None or not isinstance(self.f, TorchFunction):
            return observe
        return _Observer(observe, self.f)


def _bound(problem: TorchProblem, functions: tuple) -> TorchProblem:
    return eqx.tree_at(lambda p: (p.f, p.g), problem, functions)


class _Whole:
    """All of the data, in the precision of x and y."""

    def __init__(self, data: PyTree):
        self.data = data
        self._made: dict[torch.dtype, tuple] = {}

    def read(self, _: object, dtype: torch.dtype, device: torch.device) -> tuple:
        """No argument, or one."""
        if self.data is None:
            return ()
        if dtype not in self._made:
            self._made[dtype] = (jax.tree.map(lambda leaf: _cast(leaf, dtype, device), self.data),)
        return self._made[dtype]


def _cast(leaf: Any, dtype: torch.dtype, device: torch.device) -> Any:
    if isinstance(leaf, np.ndarray):
        leaf = torch.as_tensor(leaf, device=device)
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.device != device:
        raise ProblemError(
            f"data are on {leaf.device}, but x and y on {device}: move them with .to(device)."
        )
    return leaf.to(dtype) if leaf.is_floating_point() else leaf


class _Observer:
    """What the user looks at, on the host and in the compiled loop."""

    def __init__(self, observe: Callable, function: TorchFunction):
        self.observe, self.function = observe, function

    def _seen(self, x: PyTree, y: PyTree) -> dict[str, np.ndarray]:
        a, b = self.function.sides
        with torch.no_grad():
            leaves, structure = jax.tree.flatten((a.tensors(x), b.tensors(y)))
            found = self.function.at(self.observe, structure, leaves)
        return {k: np.asarray(torch.as_tensor(v).cpu(), np.float32) for k, v in found.items()}

    def __call__(self, x: PyTree, y: PyTree) -> dict[str, Any]:
        """A dict of numbers, as `observe` of `solve` returns it."""
        leaves, structure = jax.tree.flatten((x, y))
        if not traced(leaves):
            return self._seen(x, y)
        blank = jax.tree.unflatten(structure, [np.zeros(v.shape, v.dtype) for v in leaves])
        like = self._seen(*blank)

        def call(*arrays: np.ndarray) -> list[np.ndarray]:
            return list(self._seen(*jax.tree.unflatten(structure, arrays)).values())

        shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in like.values()]
        return dict(zip(like, host_call(call, shapes, *map(jnp.asarray, leaves)), strict=True))
