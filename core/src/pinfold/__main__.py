"""`python -m pinfold`."""

from __future__ import annotations

from pinfold.cli import main

main()
