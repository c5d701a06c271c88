"""`python -m offline_cli`, the same as `offline-cli`: for launchers that start a module (torchrun) and unlinked installs."""

import os
import sys

HOME = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def without_current_folder_first() -> None:
    """Move the current folder, which `python -m` puts first, to the end of sys.path, so that no file there shadows a module."""
    if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd() and os.path.realpath(sys.path[0]) != HOME:
        sys.path.append(sys.path.pop(0))


if __name__ == "__main__":
    without_current_folder_first()

from offline_cli.cli.app import main  # noqa: E402

if __name__ == "__main__":
    main()
