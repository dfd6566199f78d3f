"""Write the chapters as notebooks that Colab can open: ``python book/colab.py FOLDER``.

Colab opens .ipynb files of a GitHub repository and nothing else, and it starts from an empty machine. So the
workflow keeps the chapters as .ipynb on a branch of their own, and each begins with a cell that fetches the companion
and its data. The repository's address is that of ``_config.yml``; without one nothing is written.
"""

from __future__ import annotations

import argparse
from pathlib import Path

#: Branch that holds them; the launch buttons lead there.
BRANCH = "colab"

_SETUP = """\
# Colab starts from an empty machine: fetch the companion with its data, once.
import importlib.util
import os
import pathlib
import subprocess
import sys

home = pathlib.Path("companion").resolve()
if not home.exists():
    subprocess.run(["git", "clone", "--depth", "1", "--branch", {branch!r}, {url!r}, str(home)], check=True)
if importlib.util.find_spec("companion") is None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", str(home / "constraints.txt")]
    subprocess.run([*command, "--editable", f"{{home}}[all]"], check=True)
    sys.path.insert(0, str(home / "src"))  # a kernel that runs already does not look for new packages
os.environ["COMPANION_PROJECT"] = str(home)
os.chdir(home / "notebooks")
"""


def setup_cell(url: str, branch: str) -> str:
    """Return the source of the first cell: Python that fetches the companion from `url` and moves into it."""
    return _SETUP.format(url=url, branch=branch)


def write(folder: Path, url: str, branch: str) -> list[Path]:
    """Write every chapter to ``folder/notebooks``; return the paths."""
    import nbformat

    from companion.book import runs

    made = []
    for source in runs.chapter_paths():
        notebook = runs.read_notebook(source)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(setup_cell(url, branch), id="colab"))
        target = folder / "notebooks" / f"{source.stem}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        made.append(target)
    return made


def main() -> None:
    """Write them for the repository that the settings name."""
    import yaml

    from companion.paths import project_root

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    repository = yaml.safe_load((project_root() / "_config.yml").read_text(encoding="utf-8"))["repository"]
    if not repository["url"]:
        print("no repository address in _config.yml: nothing to write")
        return
    made = write(folder, repository["url"], repository["branch"])
    print(f"{len(made)} notebooks for Colab in {folder}")


if __name__ == "__main__":
    main()
