"""Options of the public functions, the commands and the configuration file, each declared once.

A command's options are a TypedDict (`ConvertOptions`), whose entries are `Annotated[type, Option(...)]`; commands share entries
by inheriting TypedDicts. From them come the keywords of the library function and the schema of the configuration file
(`keywords.py`), the parameters and the help of the command line (`cli/command_line.py`), and the reference pages.

Nothing here imports anything heavy, because `--help` reads these modules; nor do the declarations postpone their annotations
(`from __future__ import annotations`), which would have to be compiled one by one.
"""

from offline_cli.options.option import Declared, Form, Group, Option, declared_in, reworded

__all__ = ["Declared", "Form", "Group", "Option", "declared_in", "reworded"]
