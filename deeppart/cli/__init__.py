"""The commands (docs/commands.md): options, one call of :mod:`deeppart.offline` or another package, one record, and
:func:`~deeppart.cli.output.render`, which prints the record as JSON or as the lines and tables that the command makes.

To add a command: write its module here, with a function of the command's name, and name it in ``app.py``. Its record is
a frozen dataclass where its content comes from. ``--json`` prints the fields, and the properties in ``json_also``; a
table the fields in ``columns``. What a command needs of torch is imported when it runs: import it from the lazy face
(``from deeppart import offline``), or inside of the function.
"""

from deeppart.cli.app import main

__all__ = ["main"]
