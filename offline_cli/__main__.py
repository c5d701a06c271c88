"""`python -m offline_cli`, the same as `offline-cli`: for launchers that start a module (torchrun) and unlinked installs."""

from offline_cli.cli.app import main

if __name__ == "__main__":
    main()
