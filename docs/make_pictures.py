"""Pictures of the pages, made by what the pages tell the reader to run; written into docs/pictures/, which git ignores."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from offline_cli import record, train_bc

__all__ = ["make_pictures"]

HERE = Path(__file__).resolve().parent


def make_pictures(folder: Path) -> None:
    """Write the pictures that `folder` lacks: curve.png, of the second part of the tutorial."""
    if (folder / "curve.png").is_file():
        return
    tutorial = (HERE / "tutorial.md").read_text(encoding="utf-8")
    expert = re.findall(r"```python\n(# expert\.py\n.*?)```", tutorial, re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as made:
        work = Path(made)
        (work / "expert.py").write_text(expert, encoding="utf-8")
        record("CartPole-v1", work / "expert", policy=f"python:{work / 'expert.py'}:act", episodes=50, device="cpu")
        train_bc(work / "expert", work / "clone", env="CartPole-v1", until_return=450, device="cpu")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(work / "clone" / "curve.png", folder / "curve.png")
