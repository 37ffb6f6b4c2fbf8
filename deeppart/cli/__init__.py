"""The commands (docs/commands.md): each declares its options, a function that returns one record of
:mod:`deeppart.offline` or another package, and the lines that people see of it (:func:`~deeppart.cli.output.command`).

To add a command: write its module here, with a function of the command's name, and name it in ``app.py``. Its record is
a frozen dataclass where its content comes from. ``--json`` prints the fields, and the properties in ``json_also``; a
table the fields in ``columns``. The exit code follows from its property ``good``. What a command needs of torch is
imported when it runs: import it from the lazy face (``from deeppart import offline``), or inside of the function.
"""

from deeppart.cli.app import main

__all__ = ["main"]
