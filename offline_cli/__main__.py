"""`python -m offline_cli`, the same as `offline-cli`: for launchers that start a module (torchrun) and unlinked installs."""

from offline_cli.import_path import without_current_folder_first

if __name__ == "__main__":
    without_current_folder_first()

from offline_cli.cli.app import main

if __name__ == "__main__":
    main()
