"""Products of sets."""

from collections.abc import Callable
from typing import final

import jax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, PyTree

from .. import _trees as trees
from .._errors import ProblemError
from . import Set, _all, _is_prefix, _is_set, _structure_error


@final
class Product(Set):
    r"""The product $S_1 \times \dots \times S_k$ of sets, one for each part of the point.

    Arguments:
        tree: a pytree of sets with the structure of the point or a prefix of it.
    """

    tree: PyTree[Set]

    def __init__(self, tree: PyTree):
        for path, leaf in jax.tree.leaves_with_path(tree, is_leaf=_is_set):
            if not _is_set(leaf):
                where = jax.tree_util.keystr(path)
                raise ProblemError(f"Product tree{where} is {leaf!r}; expected a set.")
        self.tree = tree

    @property
    def factors(self) -> list[Set]:
        """The sets that it is a product of, which are no products."""
        parts = jax.tree.leaves(self.tree, is_leaf=_is_set)
        return [factor for part in parts for factor in part.factors]

    def _map(self, function: Callable, *trees: PyTree) -> PyTree:
        return jax.tree.map(function, self.tree, *trees, is_leaf=_is_set)

    def _rows(self, z: PyTree) -> tuple[PyTree, PyTree]:
        pairs = self._map(lambda part, z: part.constraints(z), z)
        flat = jax.tree.leaves(pairs, is_leaf=lambda leaf: isinstance(leaf, tuple))
        return [pair[0] for pair in flat], [pair[1] for pair in flat]

    def _project(self, z: PyTree) -> PyTree:
        return self._map(lambda part, z: part.project(z), z)

    def _tangent(self, z: PyTree, v: PyTree, ulps: float) -> PyTree:
        return self._map(lambda part, z, v: part._tangent(z, v, ulps), z, v)

    def _contains(self, z: PyTree) -> Bool[Array, ""]:
        return _all(self._map(lambda part, z: part.contains(z), z))

    def _diameter(self, z: PyTree) -> Float[Array, ""]:
        return trees.norm(self._map(lambda part, z: part.diameter(z), z))

    def _from_unit_cube(self, u: PyTree, z: PyTree, radius: ArrayLike) -> PyTree:
        return self._map(lambda part, u, z: part.from_unit_cube(u, z, radius), u, z)

    def _check(self, z: PyTree, name: str, point: str) -> None:
        structure = jax.tree.structure(self.tree, is_leaf=_is_set)
        if not _is_prefix(self.tree, z):
            raise _structure_error("Product tree", structure, z, name, point)
        sets = jax.tree.leaves_with_path(self.tree, is_leaf=_is_set)
        for (path, part), z_part in zip(sets, structure.flatten_up_to(z), strict=True):
            where = jax.tree_util.keystr(path)
            part._check(z_part, name + where, point + where)
