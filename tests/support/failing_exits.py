"""Runs a command line many times over, each in a fork of this process that ends as any process does; shows the exit codes."""

from __future__ import annotations

import collections
import json
import os
import sys

import offline_cli.converting.convert
import offline_cli.training.training_source  # noqa: F401  what takes a second to load is loaded once
from offline_cli.cli.app import main

if __name__ == "__main__":
    codes: collections.Counter[int] = collections.Counter()
    for _ in range(int(sys.argv[1])):
        child = os.fork()
        if not child:
            sys.argv = ["offline-cli", *sys.argv[2:]]
            main()
        codes[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
    sys.stdout.write(json.dumps(codes))
    sys.stdout.flush()
    os._exit(0)
