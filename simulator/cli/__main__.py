"""``python -m deeppart_simulator.cli``."""

from .app import main

if __name__ == "__main__":
    main(prog_name="deeppart-sim")
