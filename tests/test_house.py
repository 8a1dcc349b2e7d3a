"""The shape of the code: one loop over a solver's steps, small functions, no type tests."""

import ast
import pathlib

import pdbo

SOURCE = pathlib.Path(pdbo.__file__).parent
TREES = {p.relative_to(SOURCE): ast.parse(p.read_text("utf-8")) for p in SOURCE.rglob("*.py")}
LONGEST = 60  # lines of a function
LOOPS = {"fori_loop", "scan", "while_loop"}


def calls(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def called(node):
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def test_one_module_loops_over_the_steps_of_a_solver():
    """A loop counts if `solver.step` is called anywhere in the function that holds it."""
    found = set()
    for path, tree in TREES.items():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            inside = calls(function)
            steps = any(ast.unparse(c.func).endswith("solver.step") for c in inside)
            if steps and any(called(c) in LOOPS for c in inside):
                found.add((str(path), function.name))
    assert found == {("_driver.py", "_walked")}


def test_functions_are_short():
    long = [
        f"{path}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONGEST
    ]
    assert not long


def test_solvers_and_data_are_asked_not_recognised():
    """What a solver or the data can do is said by their own attributes, not by their types."""
    kinds = {"AutoPDBO", "Batches", "Drawn", "Whole"}
    tests = [
        f"{path}: {ast.unparse(call)}"
        for path, tree in TREES.items()
        for call in calls(tree)
        if called(call) == "isinstance" and kinds & set(ast.unparse(call.args[1]).split(" | "))
    ]
    assert not tests


def test_one_module_chooses_the_precision():
    """The policy opens sessions with and without 64-bit types; `Pending` reopens its own."""
    chosen = {
        str(path) for path, tree in TREES.items() for call in calls(tree)
        if called(call) == "enable_x64"
    }  # fmt: skip
    chosen |= {str(p) for p in TREES if "'jax_enable_x64'" in ast.unparse(TREES[p])}
    assert chosen == {"_precision.py", "_solution.py"}
