"""Write and execute the notebooks of the docs: `python docs/notebooks.py`.

Cells are executed here without a kernel; the tests execute them too and compare what they print.
"""

import ast
import base64
import contextlib
import io
import json
import pathlib
import sys
from typing import Any

FOLDER = pathlib.Path(__file__).resolve().parent / "notebooks"


def execute(notebook: dict[str, Any]) -> None:
    """Run the code cells in one namespace and store what they print and show."""
    space: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        cell["execution_count"] = count
        cell["outputs"] = outputs("".join(cell["source"]), space, count)


def outputs(source: str, space: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What a cell prints, and the value of its last line."""
    tree, out, value = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(out):
        exec(compile(tree, "cell", "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), space)  # type: ignore
    found: list[dict[str, Any]] = []
    if out.getvalue():
        text = out.getvalue().splitlines(keepends=True)
        found.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data: dict[str, Any] = {"text/plain": [str(value)]}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = [value._repr_html_()]
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
            data["text/plain"] = ["a figure"]
        found.append(
            {
                "output_type": "execute_result",
                "execution_count": count,
                "metadata": {},
                "data": data,
            }
        )
    return found


def page(notebook: dict[str, Any], name: str) -> str:
    """The notebook as a page of the site, with a link to the file."""
    parts = [f"[Open the notebook]({name}.ipynb){{ download }}\n"]
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(f"{source}\n")
            continue
        parts.append(f'``` {{.py title="In [{cell["execution_count"]}]"}}\n{source}\n```\n')
        for number, output in enumerate(cell["outputs"]):
            data = output.get("data", {})
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text'])}```\n")
            elif "image/png" in data:
                picture = f"{name}-{cell['execution_count']}-{number}.png"
                (FOLDER / picture).write_bytes(base64.b64decode(data["image/png"]))
                parts.append(f"![Output of cell {cell['execution_count']}]({picture})\n")
            elif "text/html" in data:
                parts.append("".join(data["text/html"]) + "\n")
            else:
                parts.append(f"```text\n{''.join(data['text/plain'])}\n```\n")
    title, *rest = parts[1].split("\n", 1)
    return "\n".join([title, "", parts[0], *rest, *parts[2:]])


def main() -> None:
    """Execute every notebook and write it again, with its page."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = json.loads(path.read_text())
        execute(notebook)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        path.with_suffix(".md").write_text(page(notebook, path.stem))
        print(path.name)


if __name__ == "__main__":
    sys.exit(main())
