"""The command line: ephemeral and durable sandboxes, specs, and plugins' verbs."""

from __future__ import annotations

from pinfold.cli._app import FAILURE as FAILURE
from pinfold.cli._app import main as main
