"""``python -m deeppart.cli``, for where the ``deeppart`` script is not on the PATH."""

from deeppart.cli.app import main

main(prog_name="deeppart")
