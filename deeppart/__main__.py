"""``python -m deeppart``: the command ``deeppart``, for where its script is not on the PATH."""

from deeppart.cli import main

if __name__ == "__main__":
    main(prog_name="deeppart")
