"""Run the examples and write their pages: `python docs/gallery.py [NAME ...]`."""

import ast
import pathlib
import subprocess
import sys

DOCS = pathlib.Path(__file__).resolve().parent
EXAMPLES = DOCS.parent / "examples"


def run(name: str) -> str:
    """Run an example in the gallery's folder, where it saves its figure; return what it prints."""
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    return subprocess.check_output(command, cwd=DOCS / "gallery", text=True)


def page(name: str, printed: str) -> str:
    """The page of an example: its description, output, figure with caption, and source."""
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""
    title, _, rest = text.partition("\n")
    about, _, caption = rest.strip().partition("\n\nFigure: ")
    caption = caption.replace("\n", " ")
    return (
        f"---\nhide: [toc]\n---\n\n# {title.rstrip('.')}\n\n{about}\n\n"
        f"```text\n{printed}```\n\n"
        f"![{caption}]({name}.png)\n\n{caption[0].upper()}{caption[1:]}\n\n"
        f'``` {{.py title="examples/{name}.py"}}\n--8<-- "examples/{name}.py"\n```\n'
    )


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(path.stem for path in EXAMPLES.glob("*.py"))
    for name in names:
        (DOCS / "gallery" / f"{name}.md").write_text(page(name, run(name)))
        print(name)
